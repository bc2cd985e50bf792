"""The search over precisions, batch sizes and accumulation; for each, the core finds the checkpoint plan."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from gpumem._core import Report, find_gpu
from gpumem.checkpointing import fingerprint
from gpumem.errors import BatchDependentError, DoesNotFitError, InputError, PlanError
from gpumem.extraction import TRACED_BATCHES
from gpumem.planning.alternatives import alternatives
from gpumem.planning.axes import Axes
from gpumem.planning.explain import does_not_fit
from gpumem.planning.loops import Choice, PlannedLoop
from gpumem.planning.plan import Plan
from gpumem.units import parse_bytes

# Batch sizes between the largest without checkpoints and the largest with, looked at for the throughput.
_BATCHES_LOOKED_AT = 16
# A global batch that differs by less than this part of it may do as well.
_NEARBY_SHARE = 16
# Divisors of a global batch that are looked at, from the largest micro-batch that fits on.
_DIVISORS_LOOKED_AT = 24
# A traced plan can need some bytes more than the joined one; so often the next is tried.
_TRIES = 6
_TRAIN_ONLY = "for inference there is nothing to checkpoint: gpumem.max_batch(model, mode='infer') finds the batch"


@dataclass(frozen=True)
class _Found:
    loop: PlannedLoop
    choice: Choice
    accumulate: int
    report: Report


def find_plan(model: nn.Module, input: Any, axes: Axes, loop: Mapping[str, Any], target: Mapping[str, Any]) -> Plan:
    """The best plan within a budget; see `gpumem.plan`."""
    axes.check()
    loops = list(axes.loops(loop))
    if axes.global_batch is not None and loop["accumulate"] != 1:
        raise InputError(
            "global_batch and accumulate were both given", "global_batch chooses the number of micro-batches"
        )
    if loop["mode"] != "train":
        raise PlanError("a checkpoint plan is for training", _TRAIN_ONLY)
    if target.get("gpu") is None and target.get("budget") is None:
        raise PlanError("a plan needs a limit", "pass gpu='rtx3090' or budget='24GB'")
    answers = [_attempt(model, input, axes, one, target) for one in loops]
    found = [answer for answer in answers if isinstance(answer, _Found)]
    if not found:
        failed = [answer for answer in answers if isinstance(answer, DoesNotFitError)]
        raise does_not_fit(model, input, axes, loops[0], target, failed)
    best = max(found, key=lambda one: _worth(one, axes))
    return _plan(model, axes, best, target)


def _attempt(
    model: nn.Module, input: Any, axes: Axes, loop: Mapping[str, Any], target: Mapping[str, Any]
) -> _Found | DoesNotFitError:
    try:
        return _best(model, input, axes, loop, target)
    except DoesNotFitError as error:
        return error


def _worth(found: _Found, axes: Axes) -> tuple[float, float]:
    if axes.batch is None and axes.global_batch is None and axes.objective == "batch":
        return found.choice.batch, found.choice.samples_per_second
    return found.choice.samples_per_second, found.choice.batch


def _best(model: nn.Module, input: Any, axes: Axes, loop: Mapping[str, Any], target: Mapping[str, Any]) -> _Found:
    """The best of one precision."""
    if axes.batch is not None:
        accumulate = loop["accumulate"] if axes.global_batch is None else axes.global_batch // axes.batch
        planned = PlannedLoop(model, input, (axes.batch,), _accumulating(loop, accumulate), offload=axes.offload)
        return _confirmed(planned, [axes.batch], accumulate, target)
    if axes.global_batch is not None:
        return _dividing(model, input, axes, axes.global_batch, loop, target)
    try:
        planned = PlannedLoop(model, input, TRACED_BATCHES, loop, offload=axes.offload)
    except BatchDependentError as error:
        raise PlanError(
            f"this loop has no plan for all batch sizes: {error.message}", "pass batch= to plan for one size"
        ) from error
    largest = planned.max_batch(target)
    if axes.objective == "batch":
        return _confirmed(planned, range(largest, 0, -1), loop["accumulate"], target)
    choices = (planned.cheapest(batch, target) for batch in _spread(planned.max_batch_without(target), largest))
    best = max((choice for choice in choices if choice is not None), key=lambda choice: choice.samples_per_second)
    return _confirmed(planned, range(best.batch, 0, -1), loop["accumulate"], target)


def _accumulating(loop: Mapping[str, Any], accumulate: int) -> dict[str, Any]:
    # From the second micro-batch on memory does not change: two stand for any number.
    return {**loop, "accumulate": min(accumulate, 2)}


def _dividing(
    model: nn.Module, input: Any, axes: Axes, global_batch: int, loop: Mapping[str, Any], target: Mapping[str, Any]
) -> _Found:
    """The micro-batch of a global batch: the fastest that fits."""
    divisors = _divisors(global_batch)
    best: _Found | None = None
    for accumulate, batches in ((1, [global_batch]), (2, divisors[:-1])):
        if not batches:
            continue
        if loop["step_in_backward"] and accumulate > 1:
            continue
        planned = PlannedLoop(model, input, TRACED_BATCHES, _accumulating(loop, accumulate), offload=axes.offload)
        largest = planned.max_batch(target)
        for batch in [batch for batch in reversed(batches) if batch <= largest][:_DIVISORS_LOOKED_AT]:
            choice = planned.cheapest(batch, target)
            if choice is None or (best is not None and choice.samples_per_second <= best.choice.samples_per_second):
                continue
            with contextlib.suppress(DoesNotFitError):
                best = _confirmed(planned, [batch], global_batch // batch, target)
    if best is None:
        raise DoesNotFitError("no micro-batch fits", "", budget_bytes_of(target), planned.smallest_bytes(1, target))
    best.loop.notes += _more_divisible(global_batch, best.choice.batch, best.loop.max_batch(target))
    return best


def _divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    high = [number // divisor for divisor in reversed(low) if divisor * divisor != number]
    return low + high


def _more_divisible(global_batch: int, batch: int, largest: int) -> list[str]:
    """A global batch nearby whose micro-batch is at least twice as large, for one that is (nearly) a prime."""
    for distance in range(1, global_batch // _NEARBY_SHARE + 1):
        for other in (global_batch - distance, global_batch + distance):
            found = max(divisor for divisor in _divisors(other) if divisor <= largest)
            if found >= 2 * batch:
                note = (
                    f"global_batch={global_batch} has no divisor between {batch} and the largest micro-batch that fits "
                    f"({largest}); global_batch={other} would run in micro-batches of {found}"
                )
                return [note]
    return []


def _spread(without: int, largest: int) -> list[int]:
    """Batch sizes from the largest without checkpoints (or 1) to the largest, evenly by ratio."""
    first = max(without, 1)
    ratio = (largest / first) ** (1 / _BATCHES_LOOKED_AT)
    return sorted({min(largest, round(first * ratio**step)) for step in range(_BATCHES_LOOKED_AT + 1)} | {largest})


def _confirmed(
    planned: PlannedLoop, batches: Sequence[int] | range, accumulate: int, target: Mapping[str, Any]
) -> _Found:
    """The first batch whose plan also fits when it is traced as it runs."""
    budget_bytes = budget_bytes_of(target)
    needs = 0
    for batch in batches[:_TRIES]:
        tightened = dict(target)
        for _ in range(_TRIES):
            choice = planned.cheapest(batch, tightened)
            if choice is None:
                break
            report = planned.traced(choice).estimate(batch, **target)
            if report.fits:
                return _Found(planned, choice, accumulate, report)
            needs = report.device_peak.high
            # Joined and traced differ by some bytes: ask for a plan with that much less.
            margin = max(needs - budget_bytes, budget_bytes >> 10)
            tightened["budget"] = max(1, int(tightened.get("budget") or budget_bytes) - margin)
    smallest = needs or planned.smallest_bytes(batches[0], target)
    raise DoesNotFitError(
        f"batch {batches[0]} does not fit in {budget_bytes} bytes with any checkpoint plan", "", budget_bytes, smallest
    )


def budget_bytes_of(target: Mapping[str, Any]) -> int:
    """The budget that was given, or all of the card."""
    budget = target.get("budget")
    if budget is not None:
        return budget if isinstance(budget, int) else parse_bytes(budget)
    return find_gpu(target["gpu"]).total_bytes


def _plan(model: nn.Module, axes: Axes, found: _Found, target: Mapping[str, Any]) -> Plan:
    choice, loop = found.choice, found.loop
    fixed = axes.batch is not None or axes.global_batch is not None
    plan = Plan(
        model=type(model).__name__,
        fingerprint=fingerprint(model),
        batch=choice.batch,
        accumulate=found.accumulate,
        precision=loop.loop["precision"],
        **{name: loop.loop[name] for name in ("channels_last", "zero_grad", "step_in_backward")},
        optimizer=found.report.to_dict()["optimizer"],
        regions=choice.regions,
        region_count=loop.region_count,
        caches_off=_has_caches(model),
        gpu=found.report.to_dict()["gpu"],
        budget_bytes=budget_bytes_of(target),
        report=found.report,
        step_seconds=choice.step_seconds,
        recompute_seconds=choice.recompute_seconds,
        recompute_bound_seconds=choice.recompute_bound_seconds,
        objective="fixed" if fixed else axes.objective,
        notes=tuple(loop.notes),
    )
    return replace(plan, alternatives=tuple(alternatives(loop, choice, target, fixed=fixed)))


def _has_caches(model: nn.Module) -> bool:
    configs = (module.__dict__.get("config") for module in model.modules())
    return any(getattr(config, "use_cache", False) is True for config in configs)
