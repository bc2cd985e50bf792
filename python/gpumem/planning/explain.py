"""When nothing fits: how much would, what takes it, and what helps, each tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from gpumem.errors import DoesNotFitError, GpumemError
from gpumem.planning.loops import PlannedLoop
from gpumem.units import format_bytes

if TYPE_CHECKING:
    from gpumem.planning.search import Axes

# Optimizers that keep less per parameter, from the most on: two moments, one, a factored one, none.
_LIGHTER_OPTIMIZERS = ("sgd(momentum=0.9)", "adafactor", "sgd")


def does_not_fit(
    model: nn.Module,
    input: Any,
    axes: Axes,
    loop: Mapping[str, Any],
    target: Mapping[str, Any],
    failed: Sequence[DoesNotFitError],
) -> DoesNotFitError:
    """The error for a search that found nothing, with what would help."""
    nearest = min(failed, key=lambda error: error.smallest_bytes)
    batch = axes.batch or 1
    message = (
        f"no checkpoint plan fits in {format_bytes(nearest.budget_bytes)} ({nearest.budget_bytes:,} bytes): the least "
        f"that any needs at batch {batch} is {format_bytes(nearest.smallest_bytes)} "
        f"({nearest.smallest_bytes:,} bytes)"
    )
    steps = list(_steps(model, input, axes, loop, target, nearest.budget_bytes, nearest.smallest_bytes))
    hint = "tried: " + "; ".join(steps) if steps else "a larger budget or a smaller model"
    return DoesNotFitError(message, hint, nearest.budget_bytes, nearest.smallest_bytes)


def _steps(
    model: nn.Module,
    input: Any,
    axes: Axes,
    loop: Mapping[str, Any],
    target: Mapping[str, Any],
    budget_bytes: int,
    smallest_bytes: int,
) -> Iterator[str]:
    """What would fit or come nearer, each played by the engine."""
    batch = axes.batch or 1
    precision = axes.precisions[0]
    base = {**loop, "precision": precision}
    changes: list[tuple[str, dict[str, Any], int]] = []
    changes += [(f"batch {size}", {}, size) for size in dict.fromkeys((batch // 2, 1)) if 0 < size < batch]
    if precision in ("fp32", "tf32"):
        changes.append(("precision amp-bf16", {"precision": "amp-bf16"}, batch))
        changes.append(("precision bf16", {"precision": "bf16"}, batch))
    changes += [(f"optimizer {name}", {"optimizer": _optimizer(name)}, batch) for name in _LIGHTER_OPTIMIZERS]
    for what, change, size in changes:
        try:
            planned = PlannedLoop(model, input, (size,), {**base, **change}, parts=False)
            needs = planned.smallest_bytes(size, target)
        except GpumemError:
            continue
        if needs >= smallest_bytes:
            continue
        verdict = "fits" if needs <= budget_bytes else "does not fit"
        yield f"{what}: {verdict}, {format_bytes(needs)}"


def _optimizer(text: str) -> Any:
    name, _, arguments = text.partition("(")
    if not arguments:
        return name
    key, _, value = arguments.rstrip(")").partition("=")
    return name, {key: float(value)}
