"""Sweeps: `python -m benchmarks.sweep` writes `benchmarks/results/sweep.md`.

- a million (batch, precision, plan) what-ifs of ResNet-50, ranked, beside the exact engine's time for each of a sample;
- a realistic grid of timm models: time, the share of extraction, and the time when every trace is found on disk.

Arguments: parts to run (`rank`, `grid`); both without.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

import gpumem
from gpumem.extraction import TRACED_BATCHES
from gpumem.extraction.keywords import loop_keywords
from gpumem.planning.loops import PlannedLoop
from gpumem.planning.ranking import rank_loops

RESULTS = Path(__file__).parent / "results" / "sweep.md"
TARGET: dict[str, Any] = {"gpu": "rtx3090", "budget": "10GB"}
# Beyond any card: what is asked for when nothing is short.
UNLIMITED = 1 << 49
PRECISIONS = ("fp32", "amp-bf16", "bf16")
RANKED_BATCHES = [*range(32, 513, 32)]
RANKED_PLANS = 21_000
SAMPLE = 40
MODELS = (
    "resnet50", "resnet18", "mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny", "regnety_016",
    "vit_small_patch16_224", "vit_base_patch16_224", "deit3_small_patch16_224", "mixer_b16_224",
    "swin_tiny_patch4_window7_224", "densenet121",
)  # fmt: skip
PARTS = ("rank", "grid")
CARDS = ["t4", "rtx3090", "a100-40gb", "a100-80gb", "h100"]


def ranked() -> list[str]:
    """The million."""
    start = time.perf_counter()
    loops = [
        PlannedLoop(
            torchvision.models.resnet50(), None, TRACED_BATCHES, loop_keywords({"precision": name}), parts=False
        )
        for name in PRECISIONS
    ]
    tracing = time.perf_counter() - start
    start, cpu = time.perf_counter(), time.process_time()
    ranking = rank_loops(loops, RANKED_BATCHES, TARGET, plans=RANKED_PLANS)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    rng = np.random.default_rng(1)
    exact_cpu, equal, wrong = 0.0, 0, 0
    for row in rng.integers(0, len(ranking), SAMPLE):
        choice = ranking.plans[ranking.plan[row]].tolist()
        spec = loops[ranking.precision[row]].space.splice(choice)
        batch = int(ranking.batch[row])
        begin = time.process_time()
        fits = spec.fits(batch, **TARGET)
        exact_cpu += time.process_time() - begin
        report = spec.estimate(batch, **TARGET)
        unlimited = spec.estimate(batch, gpu=TARGET["gpu"], budget=UNLIMITED)
        equal += int(ranking.requested_bytes[row]) == unlimited.requested_peak.high
        too_high = int(ranking.least_reserved_bytes[row]) > report.reserved_peak.high
        wrong += too_high or (fits and not bool(ranking.may_fit[row]))
    best = max(ranking.best, key=lambda one: one.choice.samples_per_second)
    what = f"{len(RANKED_BATCHES)} batch sizes ({RANKED_BATCHES[0]} to {RANKED_BATCHES[-1]})"
    plans = f"{len(ranking.plans):,} of its 65,536 checkpoint plans"
    each, exact = 1e6 * cpu / len(ranking), 1e6 * exact_cpu / SAMPLE
    fastest = f"batch {best.choice.batch}, {best.precision}, {len(best.choice.regions)} regions checkpointed"
    rows = {
        "tracing, all precisions with their checkpoint variants": f"{tracing:.1f} s",
        "ranking, wall clock": f"{seconds:.1f} s",
        "ranking, CPU seconds of all threads": f"{cpu:.1f} s",
        f"CPU time of a what-if: here / an exact `fits` (mean of {SAMPLE}) / ratio": (
            f"{each:.1f} us / {exact:,.0f} us / {exact / each:.0f}"
        ),
        "proven not to fit": f"{np.count_nonzero(~ranking.may_fit):,}",
        "fastest of those that were played and fit": fastest,
        "faster ones that no proof excludes": f"{ranking.undecided_before_best:,}",
        "sample: requested bytes equal to the exact engine's": f"{equal} of {SAMPLE}",
        "sample: bound above what is reserved, or said impossible and fits": f"{wrong} of {SAMPLE}",
    }
    return [
        "## A million what-ifs of ResNet-50, ranked",
        "",
        f"{len(ranking):,} combinations within {TARGET['budget']} on {TARGET['gpu']}:",
        f"{what} x {', '.join(PRECISIONS)} x {plans}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
        "Exact: requested bytes, samples per second (in the roofline model), and the best plan of each batch size and",
        "precision, which was played. A lower bound: reserved bytes. Of rows that may fit by the bound, only those",
        "that were played are known to.",
        "",
    ]


def grid() -> list[str]:
    """The realistic grid."""
    axes = {
        "input": [(3, size, size) for size in (160, 192, 224, 256)],
        "precision": ["fp32", "amp-bf16", "bf16"],
        "optimizer": ["sgd(momentum=0.9)", "adamw", "rmsprop"],
        "batch": range(4, 257, 4),
        "gpu": CARDS,
    }
    names = [f"timm:{name}" for name in MODELS]
    rows, lines = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for what in ("nothing cached", "every trace cached"):
            marks: dict[str, float] = {}
            start = time.perf_counter()

            def note(part: str, done: int, total: int, marks: dict[str, float] = marks) -> None:
                marks[part] = time.perf_counter()

            table = gpumem.sweep(names, axes, cache=folder, upper_only=True, progress=note)
            total = time.perf_counter() - start
            tracing = marks.get("tracing", start) - start
            rows = len(table)
            failed = sum(error is not None for error in table["error"])
            lines.append(f"| {what} | {total:.0f} s | {tracing:.0f} s ({100 * tracing / total:.0f} %) | {failed:,} |")
    sizes = " x ".join(f"{len(values)} {name}" for name, values in {"model": names, **axes}.items())
    return [
        "## A grid of timm models",
        "",
        f"{rows:,} rows ({sizes}), every row played at the upper end (`upper_only`).",
        "",
        "| | time | of which tracing | rows without an answer |",
        "|---|---|---|---|",
        *lines,
        "",
    ]


def main() -> None:
    """Run the parts and write the summary."""
    parser = argparse.ArgumentParser()
    # With `choices`, argparse refuses to be given none.
    parser.add_argument("parts", nargs="*", help=f"default: {' '.join(PARTS)}")
    parts = parser.parse_args().parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    command = f"python -m benchmarks.sweep {' '.join(parts)}"
    machine = f"{os.cpu_count()} cores ({platform.machine()}), load average {os.getloadavg()[0]:.0f} when it began"
    lines = ["# Sweeps", "", f"Written by `{command}` with torch {torch.__version__} on {machine}.", ""]
    for name, part in (("rank", ranked), ("grid", grid)):
        if name in parts:
            lines += part()
    RESULTS.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
