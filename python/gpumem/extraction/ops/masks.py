"""Ops whose sizes are the number of set elements of a mask, and what copies through a mask.

The positions of set elements are counted and selected by CUB: formula `nonzero` `[items]`, with the positions requested
between its two stages (`ATen/native/cuda/Nonzero.cu`, `IndexKernel.cpp`, `TensorAdvancedIndexing.cpp`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gpumem.extraction.ops.engine import called_by_engine, node_name
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_INDEX_BYTES = 8


def set_elements(rec: Recorder, mask: torch.Tensor, op: str) -> int:
    """How many elements of `mask` are set: a read of values by `op`, and none where they are not known."""
    known = _known_count(rec, mask)
    if known is None:
        rec.host_read(op)
    return known or 0


def _selected(rec: Recorder, x: torch.Tensor, mask: torch.Tensor, count: int) -> torch.Tensor:
    """`x[mask]`: the positions end once it is there."""
    found = positions(rec, mask, count)
    output = torch.empty((count,), dtype=x.dtype, device="meta")
    rec.requested(output)
    del found
    return output


def _repeats(mask: torch.Tensor, shape: Sequence[int]) -> int:
    """How often each element of `mask` stands in it when it is expanded to `shape`."""
    return math.prod(shape) // max(1, mask.numel())


def _known_count(rec: Recorder, mask: torch.Tensor) -> int | None:
    values = rec.known_values(mask)
    return None if values is None else int(values.count_nonzero())


def positions(rec: Recorder, mask: torch.Tensor, count: int) -> torch.Tensor:
    """Request what finding the `count` set elements of `mask` takes, and their positions, a row per dimension."""
    with Temporaries(rec) as tmp:
        tmp.contiguous(mask)
        scratch = rec.formula("nonzero", [mask.numel()])
        rec.stage(scratch, 0)
        found = torch.empty((mask.dim(), count), dtype=torch.int64, device="meta")
        rec.requested(found)
        rec.stage(scratch, 1)
    return found


@handles(aten.nonzero.default)
def nonzero(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The number of rows is data: none, where it is not known."""
    x = args[0]
    if not x.is_meta:
        return func(*args, **kwargs)
    return positions(rec, x, set_elements(rec, x, "aten::nonzero")).t()


@handles(aten.masked_select.default)
def masked_select(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The number of elements is data: none, where it is not known."""
    x, mask = args
    if not x.is_meta:
        return func(*args, **kwargs)
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    return _selected(rec, x, mask.expand(shape), set_elements(rec, mask, "aten::masked_select") * _repeats(mask, shape))


@handles(aten.masked_scatter.default, aten.masked_scatter_.default)
def masked_scatter(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A clone unless in place, a 64-bit running count of the mask, the mask as bytes, CUB's scan of it, and the source.

    The gradient of `masked_select` is scattered into its own zeros.
    """
    x, mask = args[0], args[1]
    if not x.is_meta:
        return func(*args, **kwargs)
    output = x
    if func is aten.masked_scatter.default and not (called_by_engine(rec) and node_name() == "MaskedSelectBackward0"):
        shape = torch.broadcast_shapes(x.shape, mask.shape)
        output = torch.empty(shape, dtype=x.dtype, device="meta")
        rec.requested(output)
    with Temporaries(rec) as tmp:
        tmp.alloc(output.numel() * _INDEX_BYTES)
        tmp.contiguous(mask.expand(output.shape))
        rec.scratch("cub_scan", [output.numel(), _INDEX_BYTES])
        tmp.contiguous(args[2])
    return output


@handles(aten.masked_scatter_backward.default)
def masked_scatter_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the mask selects of the gradient, followed by zeros up to the source's size; nothing, where it is not known.

    Whatever the mask: selection and zeros together are as large as their concatenation.
    """
    grad, mask, sizes = args
    if not grad.is_meta:
        return func(*args, **kwargs)
    count = (_known_count(rec, mask) or 0) * _repeats(mask, grad.shape)
    selected = _selected(rec, grad, mask.expand(grad.shape), count)
    rest = math.prod(sizes) - count
    if not rest:
        return selected.view(sizes)
    output = torch.empty(sizes, dtype=grad.dtype, device="meta")
    with Temporaries(rec) as tmp:
        tmp.alloc(rest * output.element_size())
        rec.requested(output)
        # The concatenation takes the selection's place.
        del selected
    return output
