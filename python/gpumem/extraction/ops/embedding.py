"""Embedding lookups and their dense gradients (`ATen/native/cuda/Embedding.cu`, `EmbeddingBackwardKernel.cu`).

The gradient of more than 3072 indices is sorted first. What that takes depends on the SM count and on CUB's tiles, so
it is the formula `embedding_backward` with the arguments
`[n_indices, dim, rows, index_itemsize, grad_itemsize, always_sorted, counted]`: stage 0 before the gradient is
requested (sorted and original indices, and a range and CUB's storage freed at once), stage 1 after it (segments and
partial sums; everything is freed at its end).
"""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import handles
from gpumem.extraction.ops.sorting import sort_scratch
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_MAX = 2
_POSITION_BYTES = 8


@handles(aten.embedding.default)
def embedding(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A row per index; indices of several dimensions are flattened, which copies them where no view can be flat."""
    weight, indices = args[:2]
    if not weight.is_meta:
        return func(*args, **kwargs)
    if indices.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            f"{indices.dtype} instead (while checking arguments for embedding)"
        )
    output = torch.empty((*indices.shape, *weight.shape[1:]), dtype=weight.dtype, device="meta")
    with Temporaries(rec) as tmp:
        if indices.dim() > 1 and indices.is_meta and not _flattens(indices):
            tmp.alloc(indices.numel() * indices.element_size())
        rec.requested(output)
    return output


def _flattens(indices: torch.Tensor) -> bool:
    """Whether `reshape(-1)` is a view: one column of a table of boxes is, an expanded row of positions is not."""
    return bool(indices.reshape(-1).untyped_storage()._cdata == indices.untyped_storage()._cdata)


def _sorted_gradient(
    rec: Recorder, grad: torch.Tensor, indices: torch.Tensor, rows: int, always_sorted: bool, counted: bool
) -> torch.Tensor:
    dim = grad.shape[-1]
    scratch = rec.formula(
        "embedding_backward",
        [indices.numel(), dim, rows, indices.element_size(), grad.element_size(), int(always_sorted), int(counted)],
    )
    output = torch.empty((rows, dim), dtype=grad.dtype, device="meta")
    rec.stage(scratch, 0)
    rec.requested(output)
    rec.stage(scratch, 1)
    return output


@handles(aten.embedding_dense_backward.default)
def embedding_dense_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The full gradient matrix."""
    grad, indices, rows, _padding_idx, scale_by_frequency = args
    if not grad.is_meta:
        return func(*args, **kwargs)
    with Temporaries(rec) as tmp:
        flat_indices = tmp.contiguous(indices)
        flat_grad = tmp.contiguous(grad)
        output = _sorted_gradient(rec, grad, indices, rows, scale_by_frequency, scale_by_frequency)
        tmp.free(flat_grad, flat_indices)
    return output


@handles(aten.embedding_renorm_.default)
def embedding_renorm_(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Rows of too large a norm are scaled once each: indices are copied, sorted, and the distinct ones selected."""
    weight, indices = args[:2]
    if not weight.is_meta:
        return func(*args, **kwargs)
    count, item = indices.numel(), indices.element_size()
    with Temporaries(rec) as tmp:
        tmp.alloc(count * item)
        tmp.alloc(count * item)
        positions = tmp.alloc(count * _POSITION_BYTES)
        sort_scratch(rec, indices, count)
        tmp.free(positions)
        tmp.alloc(count * item)
        tmp.alloc(_POSITION_BYTES)
        rec.scratch("select_unique", [count, item])
    return weight


@handles(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Bag sizes, the bag of each index, the output; for `max` also the winning indices."""
    weight, indices, offsets = args[:3]
    if not weight.is_meta:
        return func(*args, **kwargs)
    mode = args[4] if len(args) > 4 else kwargs.get("mode", 0)
    last_included = args[7] if len(args) > 7 else kwargs.get("include_last_offset", False)
    bags = offsets.shape[0] - int(last_included)
    bag_size = torch.empty(offsets.shape, dtype=indices.dtype, device="meta")
    offset2bag = torch.empty((indices.shape[0],), dtype=indices.dtype, device="meta")
    output = torch.empty((bags, weight.shape[1]), dtype=weight.dtype, device="meta")
    winners = torch.empty((bags, weight.shape[1]) if mode == _MAX else (0,), dtype=indices.dtype, device="meta")
    rec.requested(bag_size, offset2bag, output, winners)
    return output, offset2bag, bag_size, winners


@handles(aten._embedding_bag_backward.default)
def embedding_bag_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A composite op that the dispatch mode sees whole: the dense gradient; a sparse one is PyTorch's own."""
    grad, indices, _offsets, bags, bag_size, winners, rows, scale, mode, sparse = args[:10]
    if sparse or not grad.is_meta:
        return func(*args, **kwargs)
    dense = (grad, indices, bags, bag_size, winners, rows, scale, mode, *args[10:])
    return embedding_bag_dense_backward(rec, aten._embedding_bag_dense_backward.default, dense, kwargs)


@handles(aten._embedding_bag_dense_backward.default)
def embedding_bag_dense_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sums and means are sorted whatever the number of indices; `max` scatters into zeros."""
    grad, indices = args[:2]
    rows, scale_by_frequency, mode = args[5], args[6], args[7]
    if not grad.is_meta:
        return func(*args, **kwargs)
    with Temporaries(rec) as tmp:
        tmp.contiguous(grad)
        if mode == _MAX:
            output = torch.empty((rows, grad.shape[1]), dtype=grad.dtype, device="meta")
            rec.requested(output)
            return output
        return _sorted_gradient(rec, grad, indices, rows, True, scale_by_frequency)
