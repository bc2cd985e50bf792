"""Other answers beside the chosen plan, each confirmed by a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpumem.errors import SpecError
from gpumem.planning.loops import Choice, PlannedLoop
from gpumem.planning.plan import Alternative

_EXPANDABLE = "expandable_segments"
_SETTING = f"{_EXPANDABLE}:True"
EXPANDABLE_SEGMENTS = f"PYTORCH_CUDA_ALLOC_CONF={_SETTING}"
"""What a user sets for segments that grow, which leave hardly any gaps."""


def with_expandable_segments(target: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same target with segments that grow; None where the caller's own setting speaks of them."""
    given = target.get("alloc_conf") or ""
    if _EXPANDABLE in given:
        return None
    return {**target, "alloc_conf": f"{given},{_SETTING}" if given else _SETTING}


def alternatives(loop: PlannedLoop, chosen: Choice, target: Mapping[str, Any], *, fixed: bool) -> Iterator[Alternative]:
    """The same batch with less recomputation; unless it is `fixed`, also the largest without checkpoints and with.

    Args:
        loop: The loop that was planned.
        chosen: The plan.
        target: Keywords of `ModelSpec.estimate` with a limit.
        fixed: Whether the caller gave the batch size.
    """
    expandable = with_expandable_segments(target)
    if chosen.regions and expandable is not None:
        other = loop.cheapest(chosen.batch, expandable)
        if other is not None and other.recompute_seconds < chosen.recompute_seconds:
            yield from _confirmed(EXPANDABLE_SEGMENTS, loop, other, expandable)
    if fixed:
        return
    without = loop.max_batch_without(target)
    for what, batch in (("no checkpoints", without), ("largest batch", loop.max_batch(target))):
        if batch in (0, chosen.batch):
            continue
        other = loop.cheapest(batch, target)
        if other is not None:
            yield from _confirmed(what, loop, other, target)


def _confirmed(what: str, loop: PlannedLoop, other: Choice, target: Mapping[str, Any]) -> Iterator[Alternative]:
    try:
        report = loop.traced(other).estimate(other.batch, **target)
    except SpecError:
        return
    overhead = other.recompute_seconds / other.step_seconds if other.step_seconds else 0.0
    yield Alternative(what, other.batch, report.device_peak.high, overhead)
