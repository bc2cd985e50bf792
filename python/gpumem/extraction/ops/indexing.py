"""Indexing, gathering and scattering (`ATen/native/cuda/Indexing.cu`, `TensorAdvancedIndexing.cpp`).

The gradient of an index sums duplicates by sorting the flattened indices with CUB (`radix_sort`
`[n, largest_key, key_itemsize, value_itemsize]`). Formulas of autograd that scatter into fresh zeros do so in place on
CUDA, out of place on meta, where tensors count as subclass-like; here they are in place again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gpumem.extraction.ops.engine import called_by_engine, node_name
from gpumem.extraction.ops.masks import positions, set_elements
from gpumem.extraction.ops.reduction_scratch import reduce_scratch
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_INDEX_BYTES = 8
_MASKS = (torch.bool, torch.uint8)


def _on_device(rec: Recorder, index: torch.Tensor | None) -> torch.Tensor | None:
    """A CPU index is copied to the device first; one made from a Python list is on it, and seen here first."""
    if index is None or index.is_meta:
        return index
    copy = torch.empty(index.shape, dtype=index.dtype, device="meta")
    rec.requested(copy)
    return copy


def _expand_masks(rec: Recorder, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """A mask stands for the indices of its set elements, whose number is data: none, where it is not known."""
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in _MASKS:
            expanded += positions(rec, torch.atleast_1d(index), set_elements(rec, index, "aten::nonzero")).unbind()
        else:
            expanded.append(index)
    return expanded


def _indexed_shape(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> tuple[int, ...] | None:
    """Shape of `x[indices]` if only leading dimensions are indexed and `x` is contiguous; else None."""
    given = [index for index in indices if index is not None]
    if indices[: len(given)] != given or not x.is_contiguous():
        return None
    return (*torch.broadcast_shapes(*(index.shape for index in given)), *x.shape[len(given) :])


@handles(aten.index.Tensor)
def index(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copies of expanded indices that differ in layout, then the output."""
    x = args[0]
    if not x.is_meta:
        return func(*args, **kwargs)
    rec.requested(args[1])
    indices = _expand_masks(rec, [_on_device(rec, i) for i in args[1]])
    given = [i for i in indices if i is not None]
    shape = _indexed_shape(x, indices)
    output = func(x, indices) if shape is None else torch.empty(shape, dtype=x.dtype, device="meta")
    with Temporaries(rec) as tmp:
        _copy_unequal_layouts(tmp, given)
        rec.requested(output)
    return output


def _copy_unequal_layouts(tmp: Temporaries, indices: list[torch.Tensor]) -> None:
    if len(indices) < 2:
        return
    shape = torch.broadcast_shapes(*(i.shape for i in indices))
    expanded = [i.expand(shape) for i in indices]
    if any(i.stride() != expanded[0].stride() for i in expanded):
        for i in expanded:
            tmp.contiguous(i)


@handles(aten.index_put.default)
def index_put(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In the backward of an index (which owns its fresh zeros) in place; else a clone is written to."""
    x, indices, values = args[:3]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not x.is_meta:
        return func(*args, **kwargs)
    if accumulate and called_by_engine(rec):
        _accumulate(rec, x, indices, values)
        return x
    rec.requested(indices)
    output = torch.empty_like(x)
    rec.requested(output)
    _write(rec, x, indices, values, accumulate)
    return output


@handles(aten.index_put_.default, aten._index_put_impl_.default)
def index_put_(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Writes through the indices; with `accumulate` duplicates are summed by sorting."""
    x, indices, values = args[:3]
    if not x.is_meta:
        return func(*args, **kwargs)
    rec.requested(indices)
    _write(rec, x, indices, values, args[3] if len(args) > 3 else kwargs.get("accumulate", False))
    return x


def _write(
    rec: Recorder, x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool
) -> None:
    if values.dtype != x.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {x.dtype} for the destination and "
            f"{values.dtype} for the source."
        )
    given = [i for i in indices if i is not None]
    masks = [i for i in given if i.dtype in _MASKS]
    if masks and len(given) == 1 and values.numel() == 1:
        # One value for everything under a mask: masked_fill, which reads no mask on the host.
        return
    with Temporaries(rec) as tmp:
        if not values.is_meta:
            tmp.alloc(values.numel() * values.element_size())
        if accumulate:
            _accumulate(rec, x, indices, values, checked=True)
        else:
            expanded = _expand_masks(rec, [_on_device(rec, i) for i in indices])
            _copy_unequal_layouts(tmp, [i for i in expanded if i is not None])


def _check_bounds(rec: Recorder, index: torch.Tensor) -> None:
    """Smallest and largest value, and whether they are in range, as the host asks."""
    with Temporaries(rec) as tmp:
        tmp.alloc(_INDEX_BYTES)
        tmp.alloc(_INDEX_BYTES)
        reduce_scratch(rec, index, acc_itemsize=2 * _INDEX_BYTES)
        tmp.free(tmp.alloc(1))
        tmp.free(tmp.alloc(1))


def _accumulate(
    rec: Recorder,
    x: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    *,
    checked: bool = False,
) -> None:
    """`index_put_with_sort_kernel`: the flattened index, a copy of the values, sorted and original order, CUB."""
    indices = _expand_masks(rec, indices)
    given = [i for i in indices if i is not None]
    shape = torch.broadcast_shapes(*(i.shape for i in given))
    count = math.prod(shape)
    largest_key = max(1, (x.numel() - 1) // max(1, _slice_elems(x, indices)))
    expanded = _expanded_values(values, _value_shape(x, indices, shape), x, indices)
    del indices
    with Temporaries(rec) as tmp:
        linear = None
        while given:
            index = given.pop(0)
            if checked and index.is_meta:
                _check_bounds(rec, index)
            if not index.is_meta:
                # Flattened on the host; only the result is copied over.
                linear = tmp.alloc(count * _INDEX_BYTES) if linear is None else linear
                continue
            wrapped = tmp.alloc(count * _INDEX_BYTES)
            scaled = tmp.alloc(count * _INDEX_BYTES)
            tmp.free(wrapped)
            if linear is None:
                linear = scaled
            else:
                tmp.free(scaled)
        # Positions under a mask end with the last index that was flattened.
        del index
        tmp.contiguous(expanded)
        tmp.alloc(count * _INDEX_BYTES)
        tmp.alloc(count * _INDEX_BYTES)
        range_copy = tmp.alloc(count * _INDEX_BYTES)
        if count:
            rec.scratch("radix_sort", [count, largest_key, _INDEX_BYTES, _INDEX_BYTES])
        tmp.free(range_copy)


def _slice_elems(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> int:
    """Elements behind one index: the dimensions after the indexed ones, or all others when those are not adjacent."""
    indexed = [dim for dim, i in enumerate(indices) if i is not None]
    if indexed == list(range(indexed[0], indexed[-1] + 1)):
        return math.prod(x.shape[indexed[-1] + 1 :])
    return math.prod(size for dim, size in enumerate(x.shape) if dim not in indexed)


def _value_shape(x: torch.Tensor, indices: Sequence[torch.Tensor | None], index_shape: Sequence[int]) -> list[int]:
    """Shape of `x[indices]` with the indexed dimensions moved to the front."""
    kept = [size for dim, size in enumerate(x.shape) if dim >= len(indices) or indices[dim] is None]
    return [*index_shape, *kept]


def _expanded_values(
    values: torch.Tensor, shape: list[int], x: torch.Tensor, indices: Sequence[torch.Tensor | None]
) -> torch.Tensor:
    leading = [i for i in indices if i is not None] == list(indices[: sum(i is not None for i in indices)])
    return values.expand(shape) if leading else values


@handles(
    aten.index_add.default,
    aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor,
    aten.put.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
)
def scatter_out_of_place(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradients of index_select, gather, sort, topk, max, min, median, ... scatter into their own fresh zeros."""
    x = args[0]
    if not x.is_meta:
        return func(*args, **kwargs)
    if called_by_engine(rec) and _is_fresh(x) and node_name() not in _OUT_OF_PLACE:
        return x
    return torch.empty_like(x) if x.is_contiguous() else func(*args, **kwargs)


# Nodes that scatter out of place, into a gradient or a count (`derivatives.yaml`, `FunctionsManual.cpp`).
_OUT_OF_PLACE = frozenset(
    {
        "IndexCopyBackward0",
        "IndexFillBackward0",
        "IndexFillBackward1",
        "IndexReduceBackward0",
        "PutBackward0",
        "ScatterBackward0",
        "ScatterBackward1",
        "ScatterReduceBackward0",
    }
)


def _is_fresh(tensor: torch.Tensor) -> bool:
    """Whether the storage is no view of something else: zeros made by the formula itself."""
    nbytes = tensor.numel() * tensor.element_size()
    return bool(tensor.is_contiguous() and tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == nbytes)


@handles(aten.scatter_reduce.two)
def scatter_reduce(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output; for a mean also ones like the source, a count like the output, and where the count is zero."""
    output = func(*args, **kwargs)
    if output.is_meta:
        rec.requested(output)
        source, reduce = args[3], args[4]
        if reduce == "mean":
            with Temporaries(rec) as tmp:
                tmp.alloc(source.numel() * source.element_size())
                tmp.alloc(output.numel() * output.element_size())
                tmp.alloc(output.numel())
    return output
