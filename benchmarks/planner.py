"""The checkpoint planner beside others: `python -m benchmarks.planner` writes `benchmarks/results/planner.md`.

- speed: the best plan of GPT-2 with 12 to 96 layers after extraction;
- PyTorch's SAC MILP: how long it takes, and our plan in the bytes that its answer needs;
- quality: recomputation of our plan and of simple ones at budgets between the smallest and what keeping all needs, all
  by one cost model and all judged by the exact allocator;
- budgets that functorch's knapsacks do not keep;
- MONeT's published points.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torchvision
from benchmarks import planner_milp, planner_quality
from benchmarks.planner_cases import GPU, Case, gpt2, on_meta
from benchmarks.planner_knapsacks import knapsacks

from gpumem.errors import BudgetError, GpumemError
from gpumem.planning.loops import PlannedLoop

RESULTS = Path(__file__).parent / "results" / "planner.md"
LAYERS = (12, 24, 48, 96)
REPETITIONS = 3
# MONeT, README, measured: model -> batch and (GB, overhead in percent); its GPU is not named.
MONET: dict[str, tuple[int, list[tuple[float, float]]]] = {
    "resnet50": (184, [(10.01, 3.22), (9.01, 4.68), (8.01, 5.56), (6.99, 7.28), (6.00, 9.31), (4.99, 11.95)]),
    "googlenet": (320, [(9.98, 7.13), (8.01, 8.44), (6.01, 12.14), (4.99, 15.77)]),
    "mobilenet_v2": (272, [(10.02, 2.40), (8.02, 4.77), (6.01, 7.55), (5.01, 8.72)]),
    "vgg16": (176, [(9.71, -5.30), (7.88, -2.18), (6.82, 1.99), (5.90, 5.44), (5.51, 9.11)]),
}
# Its figures are allocated bytes; with expandable segments hardly more is reserved.
MONET_TARGET: dict[str, Any] = {"gpu": "p100-16gb", "context": 0, "alloc_conf": "expandable_segments:True"}


def speed() -> Iterator[str]:
    """Rows of the speed table."""
    for layers in LAYERS:
        case = gpt2(layers)
        start = time.process_time()
        planned = case.planned()
        traced = time.process_time() - start
        keep = planned.kept().estimate(case.batch, **GPU).device_peak.high
        small = planned.smallest_bytes(case.batch, GPU)
        cells = []
        for share in (0.3, 0.6, 0.9):
            budget = int(small + share * (keep - small))
            walls, cpus, choice = [], [], None
            for _ in range(REPETITIONS):
                wall, cpu = time.perf_counter(), time.process_time()
                choice = planned.cheapest(case.batch, {**GPU, "budget": budget})
                walls.append(time.perf_counter() - wall)
                cpus.append(time.process_time() - cpu)
            assert choice is not None
            cost = 100 * choice.recompute_seconds / choice.step_seconds
            cells.append(f"{1e3 * min(walls):.0f} ms ({1e3 * min(cpus):.0f} ms CPU), +{cost:.1f} %")
        yield f"| {layers} | {len(planned.variant_names)} | {traced:.1f} s | {' | '.join(cells)} |"


def monet_case(name: str, batch: int) -> Case:
    """MONeT's model in our words."""
    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    make = on_meta(lambda: getattr(torchvision.models, name)(**options))
    return Case(name, make, (3, 224, 224), batch, {"precision": "fp32", "optimizer": "sgd"})


def monet() -> Iterator[str]:
    """Rows of MONeT's table."""
    for name, (batch, points) in MONET.items():
        case = monet_case(name, batch)
        recomputing, offloading = case.planned(), case.planned(offload=True)
        least = recomputing.smallest_bytes(batch, MONET_TARGET) / 1e9
        for gigabytes, overhead in points:
            target = {**MONET_TARGET, "budget": int(gigabytes * 1e9)}
            found = [_overhead(planned, batch, target) for planned in (recomputing, offloading)]
            yield f"| {name} | {batch} | {gigabytes:.2f} | {overhead:.2f} % | {' | '.join(found)} | {least:.2f} |"


def _overhead(planned: PlannedLoop, batch: int, target: dict[str, Any]) -> str:
    try:
        ours = planned.cheapest(batch, target)
    except BudgetError:
        ours = None
    return "-" if ours is None else f"{100 * ours.recompute_seconds / ours.step_seconds:.2f} %"


def _section(title: str, text: str, head: str, rows: Iterable[str]) -> str:
    columns = head.count("|") - 1
    print(f"# {title}", flush=True)
    written = []
    for row in rows:
        print(row, flush=True)
        written.append(row)
    return "\n".join([f"## {title}", "", text, "", head, "|" + "---|" * columns, *written, ""])


def main() -> None:
    """Run the parts named on the command line, or all, and write them into the file."""
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], str]] = {
        "speed": lambda: _section("Speed", SPEED, SPEED_HEAD, speed()),
        "milp": lambda: _section(
            "PyTorch's SAC MILP",
            planner_milp.TEXT,
            planner_milp.HEAD,
            (row for rival in planner_milp.RIVALS for row in planner_milp.rows(rival)),
        ),
        "quality": lambda: _section(
            "Quality",
            planner_quality.TEXT,
            planner_quality.HEAD,
            (row for case in planner_quality.CASES for row in planner_quality.rows(case)),
        ),
        "knapsack": lambda: _section("Budgets kept", KNAPSACK, KNAPSACK_HEAD, knapsack_rows()),
        "monet": lambda: _section("MONeT's points", MONET_TEXT, MONET_HEAD, monet()),
    }
    written = {} if not sys.argv[1:] else _written()
    for name in sys.argv[1:] or parts:
        section = parts[name]()
        written[section.split("\n", 1)[0]] = section
    machine = f"{platform.processor() or platform.machine()}, torch {torch.__version__}"
    RESULTS.write_text("\n".join([HEAD.format(machine=machine), *written.values()]), encoding="utf-8")


def _written() -> dict[str, str]:
    """Sections of the file as it is, by their titles."""
    found = RESULTS.read_text(encoding="utf-8").split("\n## ")[1:]
    return {f"## {section.partition(chr(10))[0]}": f"## {section.rstrip()}\n" for section in found}


def knapsack_rows() -> Iterator[str]:
    """Rows of functorch's solvers."""
    for answer in knapsacks((100, 1000, 2500)):
        over = f"{answer.over} of {answer.instances}"
        yield f"| `{answer.solver}` | {answer.items} | {over} | {answer.worst_percent:.2f} % |"


HEAD = """# The checkpoint planner beside others

`python -m benchmarks.planner` on {machine}; two cores; CPU time is given beside the clock.
Costs are least times by the roofline of an A100 (80 GB), as a share of the step without checkpoints.
"""
SPEED = """After extraction, the time of `RegionSpace.cheapest_plan` at 30, 60 and 90 % of the way from the smallest
budget to the one that keeps everything (batch 8, 512 tokens, `amp-bf16`, AdamW), best of three; the plan was played
by the exact allocator."""
SPEED_HEAD = "| layers | variants | extraction (CPU) | 30 % | 60 % | 90 % |"
KNAPSACK = """Random weights that sum to one, budget one half (what functorch passes). Every plan of ours was played
within its budget by the exact allocator: 0 over."""
KNAPSACK_HEAD = "| solver | items | over budget | worst |"
MONET_TEXT = """Its README gives the peak and the measured overhead of its schedules, which also change
implementations of operators (an overhead can be negative) and recompute single operators; ours checkpoints whole
blocks, segments of them, or runs of layers between poolings, and reaches less low. `with offload`: what a block
saves may also wait in the host's memory (PCI Express 3, 15 GB/s each way, not overlapped with anything).
Assumptions: fp32, SGD without momentum, gigabytes of 10^9 bytes, the allocator with expandable segments, context
not counted, roofline of a P100 (MONeT does not name its card). Its UNet is left out: which one it is is not said.
`-`: no plan fits; the last column is the smallest budget that one without offload needs, in GB."""
MONET_HEAD = "| model | batch | GB | MONeT, measured | ours, predicted | with offload | least |"


if __name__ == "__main__":
    try:
        main()
    except GpumemError as error:
        sys.exit(f"{error.message}\n{error.hint}")
