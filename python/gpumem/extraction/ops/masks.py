"""Ops whose sizes are the number of set elements of a mask, and what copies through a mask.

The positions of set elements are counted and selected by CUB: formula `nonzero` `[items]`, one stage
(`ATen/native/cuda/Nonzero.cu`, `IndexKernel.cpp`, `TensorAdvancedIndexing.cpp`).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.ops.engine import called_by_engine, node_name
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_INDEX_BYTES = 8


def set_elements(rec: Recorder, mask: torch.Tensor, op: str) -> int:
    """How many elements of `mask` are set: a read of values by `op`, and none where they are not known."""
    values = rec.known_values(mask)
    if values is not None:
        return int(values.count_nonzero())
    rec.host_read(op)
    return 0


def nonzero_scratch(rec: Recorder, mask: torch.Tensor) -> None:
    """What finding the set elements of `mask` requests besides their positions, whose number is data."""
    with Temporaries(rec) as tmp:
        tmp.contiguous(mask)
        rec.scratch("nonzero", [mask.numel()])


@handles(aten.nonzero.default)
def nonzero(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The number of rows is data: none, where it is not known."""
    x = args[0]
    if not x.is_meta:
        return func(*args, **kwargs)
    count = set_elements(rec, x, "aten::nonzero")
    nonzero_scratch(rec, x)
    return torch.empty((count, x.dim()), dtype=torch.int64, device="meta")


@handles(aten.masked_select.default)
def masked_select(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The number of elements is data: none, where it is not known."""
    x, mask = args
    if not x.is_meta:
        return func(*args, **kwargs)
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    count = set_elements(rec, mask, "aten::masked_select") * (math.prod(shape) // max(1, mask.numel()))
    nonzero_scratch(rec, mask.expand(shape))
    return torch.empty((count,), dtype=x.dtype, device="meta")


@handles(aten.masked_scatter.default, aten.masked_scatter_.default)
def masked_scatter(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A clone unless in place, a 64-bit running count of the mask, the mask as bytes, and CUB's scan of it.

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
    return output


@handles(aten.masked_scatter_backward.default)
def masked_scatter_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the mask selects of the gradient, followed by zeros up to the source's size.

    Whatever the mask: selection and zeros together are as large as their concatenation.
    """
    grad, mask, sizes = args
    if not grad.is_meta:
        return func(*args, **kwargs)
    nonzero_scratch(rec, mask.expand(grad.shape))
    output = torch.empty(sizes, dtype=grad.dtype, device="meta")
    with Temporaries(rec) as tmp:
        tmp.alloc(output.numel() * output.element_size())
        rec.requested(output)
    return output
