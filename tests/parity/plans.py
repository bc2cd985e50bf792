"""Checkpoint plans against the virtual GPU: the plan is applied to the real model there and joined from traces here.

PYTHONPATH=python python -m tests.parity.plans            every plan; writes benchmarks/results/parity_plans.md
PYTHONPATH=python python -m tests.parity.plans tv:swin_t  these models only, nothing is written
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gpumem import ModelSpec
from gpumem.extraction.keywords import loop_keywords
from gpumem.loop import LoopConfig
from gpumem.planning.loops import PlannedLoop
from tests.parity import models, virtual
from tests.parity.case import Case
from tests.parity.compare import Comparison, compare

MODELS: dict[str, tuple[str, str]] = {
    "tv:resnet50": ("fp32", "sgd(momentum=0.9)"),
    "tv:densenet121": ("amp-bf16", "adamw"),
    "tv:vit_b_16": ("amp-bf16", "adamw"),
    "tv:swin_t": ("amp-bf16", "adamw"),
    "hf:gpt2": ("amp-bf16", "adamw"),
    "hf:bert": ("fp32", "adamw"),
    "hf:t5": ("fp32", "adamw"),
    "hf:llama": ("bf16", "adamw"),
    "unet:plain": ("fp32", "adamw"),
    "tv:vgg16": ("fp32", "sgd(momentum=0.9)"),
}
"""Model to the precision and optimizer it is planned in."""

RANDOM_PLANS = 5
BATCH = 4


@dataclass(frozen=True)
class PlanCase:
    """One plan of one model.

    Attributes:
        name: `keep`, the name of a variant that every region runs in, or `random-N`.
        case: What the virtual GPU runs.
        joined: What gpumem joins for it.
    """

    name: str
    case: Case
    joined: ModelSpec


def plans_of(reference: str, random_plans: int = RANDOM_PLANS) -> Iterator[PlanCase]:
    """Every region in each variant, then random mixtures (the same ones every time)."""
    precision, optimizer = MODELS[reference]
    case = Case(model=reference, batch=BATCH, config=LoopConfig(precision=precision), optimizer=optimizer)
    loop = loop_keywords(
        {"precision": precision, "optimizer": case.optimizer_call(), "gpu": case.profile, "host_reads": "zeros"}
    )
    loaded = models.load(reference)
    planned = PlannedLoop(loaded.model, loaded.inputs, (BATCH,), loop, offload=True)
    draw = random.Random(0)
    choices = [(variant, [number] * planned.places) for number, variant in enumerate(planned.variant_names)]
    count = len(planned.variant_names)
    choices += [
        (f"random-{number}", [draw.randrange(count) for _ in range(planned.places)]) for number in range(random_plans)
    ]
    for name, choice in choices:
        joined, regions = planned.joined(choice)
        # Without a region nothing is applied, and a transformers model keeps its key-value caches.
        if not regions and reference.startswith("hf:"):
            continue
        yield PlanCase(name, Case(**{**vars(case), "regions": tuple(regions.items())}), joined)


def _line(plan: PlanCase, result: Comparison) -> str:
    off = ", ".join(sorted(result.off)) or "equal"
    peak = f"{result.truth.requested_peak_bytes:,}"
    return f"| {plan.case.model} | {plan.name} | {len(plan.case.regions)} | {peak} | {off} |"


def main(argv: list[str] | None = None) -> int:
    """Compare the plans of the models of the command line; 0 when all are equal."""
    named = sys.argv[1:] if argv is None else argv
    torch.set_num_threads(1)
    lines, equal, peaks = [], 0, 0
    for reference in named or MODELS:
        for plan in plans_of(reference):
            try:
                result = compare(plan.case, plan.joined)
            except virtual.ChildError as error:
                print(f"{plan.case.label()} {plan.name}: truth failed: {str(error)[:300]}", flush=True)
                continue
            lines.append(_line(plan, result))
            equal += not result.off
            peaks += not result.off - {"sequence"}
            print(lines[-1], flush=True)
    summary = f"{len(lines)} plans: peaks equal {peaks}, whole sequence equal {equal}"
    print(summary)
    if not named:
        RESULT.write_text(_HEAD.format(summary=summary) + "\n".join(lines) + "\n", encoding="utf-8")
    return 0 if equal == len(lines) else 1


RESULT = virtual.ROOT / "benchmarks" / "results" / "parity_plans.md"
_HEAD = """# Checkpoint plans: joined from traces, and run on the virtual GPU

`python -m tests.parity.plans`: {summary}. Compared at batch 4: peaks of requested, allocated and reserved bytes, and
every allocation and free of three steps; the plan is applied to the real model there (`gpumem.checkpointing`).

| model | plan | regions | requested peak, bytes | differs |
|---|---|---|---|---|
"""


if __name__ == "__main__":
    sys.exit(main())
