"""When nothing fits: how much would, what takes it, and what helps, each tried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from gpumem.checkpointing import candidate_regions
from gpumem.errors import DoesNotFitError, GpumemError
from gpumem.extraction.adamw_8bit import AdamW8bit
from gpumem.extraction.structural import meta_copy
from gpumem.planning.alternatives import EXPANDABLE_SEGMENTS, with_expandable_segments
from gpumem.planning.loops import PlannedLoop
from gpumem.units import format_bytes

if TYPE_CHECKING:
    from gpumem.planning.axes import Axes

# Optimizers that keep less per parameter: two moments in 8 bits, one moment, a factored one, none.
_LIGHTER_OPTIMIZERS: dict[str, Any] = {
    "bitsandbytes.optim.AdamW8bit": AdamW8bit,
    "sgd(momentum=0.9)": ("sgd", {"momentum": 0.9}),
    "adafactor": "adafactor",
    "sgd": "sgd",
}


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

    def tried(what: str, planned: PlannedLoop, size: int, target: Mapping[str, Any]) -> Iterator[str]:
        needs = planned.smallest_bytes(size, target)
        if needs < smallest_bytes:
            yield f"{what}: {'fits' if needs <= budget_bytes else 'does not fit'}, {format_bytes(needs)}"

    expandable = with_expandable_segments(target)
    if expandable is not None:
        with contextlib.suppress(GpumemError):
            planned = PlannedLoop(model, input, (batch,), loop, offload=axes.offload)
            yield from tried(EXPANDABLE_SEGMENTS, planned, batch, expandable)
    for what, change, size, trained in _changes(model, axes, loop, batch):
        with contextlib.suppress(GpumemError):
            offload = change.pop("offload", axes.offload)
            planned = PlannedLoop(trained, input, (size,), {**loop, **change}, offload=offload, parts=False)
            yield from tried(what, planned, size, target)


def _changes(
    model: nn.Module, axes: Axes, loop: Mapping[str, Any], batch: int
) -> Iterator[tuple[str, dict[str, Any], int, nn.Module]]:
    """In words, keywords that change, batch size and model, from the least intrusive on."""
    for size in dict.fromkeys((batch // 2, 1)):
        if 0 < size < batch:
            yield f"batch {size}", {}, size, model
    if not axes.offload:
        yield "offload=True", {"offload": True}, batch, model
    if not loop["step_in_backward"]:
        yield "step_in_backward=True", {"step_in_backward": True}, batch, model
    lower = ("amp-bf16", "bf16") if loop["precision"] in ("fp32", "tf32") else ("bf16",)
    for precision in lower:
        if precision != loop["precision"]:
            yield f"precision {precision}", {"precision": precision}, batch, model
    for name, optimizer in _LIGHTER_OPTIMIZERS.items():
        # With channels_last bitsandbytes makes copies whose order was not found out.
        if optimizer is not AdamW8bit or not loop["channels_last"]:
            yield f"optimizer {name}", {"optimizer": optimizer}, batch, model
    frozen = _half_frozen(model)
    if frozen is not None:
        yield f"freezing the first {frozen[1]} blocks", {}, batch, frozen[0]


def _half_frozen(model: nn.Module) -> tuple[nn.Module, int] | None:
    """A copy without weights whose first half of blocks is not trained, and how many these are."""
    names = [region.name for region in candidate_regions(model) if not region.name.endswith("]")]
    if len(names) < 2:
        return None
    copy = meta_copy(model)
    for name in names[: len(names) // 2]:
        copy.get_submodule(name).requires_grad_(False)
    return copy, len(names) // 2
