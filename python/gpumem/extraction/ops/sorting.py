"""Sorting, selection and permutations (`ATen/native/cuda/Sort.cpp`, `TensorTopK.cu`, `Randperm.cu`)."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_INDEX_BYTES = 8
# Up to this many elements along the dimension one block sorts a slice (Sort.cpp: should_use_small_sort).
_SMALL_SORT = 4096


@handles(aten.sort.default, aten.sort.stable)
def sort(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Values, 64-bit indices, and a range of one slice; long slices go through CUB.

    The formula `segmented_sort` has the arguments `[slices, length, itemsize]` and one stage; it is nothing for slices
    of up to 4096 elements.
    """
    output = func(*args, **kwargs)
    values, indices = output
    x = args[0]
    if not x.is_meta or x.dim() == 0 or x.numel() == 0:
        return output
    dim = kwargs.get("dim", args[1] if func is aten.sort.default and len(args) > 1 else -1)
    rec.requested(values, indices)
    sort_scratch(rec, x, x.shape[dim])
    return output


def sort_scratch(rec: Recorder, x: torch.Tensor, length: int) -> None:
    """What a sort of slices of this length requests after its results."""
    with Temporaries(rec) as tmp:
        if length <= _SMALL_SORT:
            tmp.alloc(length * _INDEX_BYTES)
    if length > _SMALL_SORT:
        rec.scratch("segmented_sort", [x.numel() // length, length, x.element_size()])


@handles(aten.randperm.default)
def randperm(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The permutation, then random keys and their sort: formula `randperm` `[n]`, one stage."""
    output = func(*args, **kwargs)
    if output.is_meta and output.numel():
        rec.requested(output)
        rec.scratch("randperm", [output.numel()])
    return output


@handles(aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default)
def unique(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The number of distinct values is data: none."""
    x = args[0]
    if not x.is_meta:
        return func(*args, **kwargs)
    rec.host_read(f"aten::{func._schema.name.removeprefix('aten::')}")
    empty = torch.empty((0,), dtype=torch.int64, device="meta")
    inverse = torch.empty(x.shape, dtype=torch.int64, device="meta")
    return torch.empty((0,), dtype=x.dtype, device="meta"), inverse, empty
