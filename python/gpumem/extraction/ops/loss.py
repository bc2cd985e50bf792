"""Losses whose CUDA kernels keep full-size storages behind scalars or buffers (facts: workspaces.md section 6)."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.reduction_scratch import reduce_scratch
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
# `at::Reduction`
_NONE, _MEAN = 0, 1
_BATCHED_DIM = 2


def _reduction(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "reduction":
            value = args[position] if position < len(args) else kwargs.get("reduction", _MEAN)
            return int(value)
    return _MEAN


def _pointwise_shape(args: tuple[Any, ...]) -> tuple[torch.Size, torch.dtype]:
    x, target = args[:2]
    return torch.broadcast_shapes(x.shape, target.shape), torch.promote_types(x.dtype, target.dtype)


def _scalar_in(storage: torch.Tensor) -> torch.Tensor:
    """A 0-d tensor that keeps the whole storage alive, as a tensor resized to a scalar does."""
    return storage.as_strided((), ())


@handles(aten.mse_loss.default, aten.smooth_l1_loss.default)
def loss_in_full_storage(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A result of full size, resized to the scalar; the elements' losses are another buffer of the call."""
    if not args[0].is_meta or _reduction(func, args, kwargs) == _NONE:
        return func(*args, **kwargs)
    shape, dtype = _pointwise_shape(args)
    storage = torch.empty(shape, dtype=dtype, device="meta")
    rec.requested(storage)
    with Temporaries(rec) as tmp:
        tmp.alloc(storage.numel() * storage.element_size())
        reduce_scratch(rec, storage)
    return _scalar_in(storage)


@handles(aten.huber_loss.default)
def huber_loss(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The elements' losses, then the scalar."""
    if not args[0].is_meta or _reduction(func, args, kwargs) == _NONE:
        return func(*args, **kwargs)
    shape, dtype = _pointwise_shape(args)
    losses = torch.empty(shape, dtype=dtype, device="meta")
    output = torch.empty((), dtype=dtype, device="meta")
    with Temporaries(rec) as tmp:
        tmp.alloc(losses.numel() * losses.element_size())
        rec.requested(output)
        reduce_scratch(rec, losses)
    return output


@handles(aten.soft_margin_loss.default, aten.binary_cross_entropy.default)
def loss_resized_in_place(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All steps in place in one full-size result, whose mean is copied into it."""
    if not args[0].is_meta or _reduction(func, args, kwargs) == _NONE:
        return func(*args, **kwargs)
    shape, dtype = _pointwise_shape(args)
    storage = torch.empty(shape, dtype=dtype, device="meta")
    rec.requested(storage)
    with Temporaries(rec) as tmp:
        tmp.alloc(storage.element_size())
        reduce_scratch(rec, storage)
    return _scalar_in(storage)


@handles(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Three full-size steps before the gradient."""
    x = args[1]
    if not x.is_meta:
        return func(*args, **kwargs)
    output = torch.empty_like(x)
    nbytes = x.numel() * x.element_size()
    with Temporaries(rec) as tmp:
        exponential, negated, quotient = (tmp.alloc(nbytes) for _ in range(3))
        tmp.free(negated, exponential)
        rec.requested(output)
        tmp.free(quotient)
    return output


@handles(aten.multi_margin_loss.default)
def multi_margin_loss(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The scalar, then one loss per sample."""
    x = args[0]
    if not x.is_meta or x.dim() < _BATCHED_DIM or _reduction(func, args, kwargs) == _NONE:
        return func(*args, **kwargs)
    losses = torch.empty((x.shape[0],), dtype=x.dtype, device="meta")
    output = torch.empty((), dtype=x.dtype, device="meta")
    rec.requested(output)
    with Temporaries(rec) as tmp:
        tmp.alloc(losses.numel() * losses.element_size())
        reduce_scratch(rec, losses)
    return output


@handles(aten.multi_margin_loss_backward.default, aten.multilabel_margin_loss_backward.default)
def margin_loss_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradient; PyTorch has no meta kernel for it."""
    x = args[1]
    return torch.empty_like(x, memory_format=torch.contiguous_format) if x.is_meta else func(*args, **kwargs)


@handles(aten.log_sigmoid_forward.default)
def log_sigmoid(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """CUDA needs no buffer for the backward."""
    x = args[0]
    if not x.is_meta:
        return func(*args, **kwargs)
    return torch.empty_like(x), torch.empty((0,), dtype=x.dtype, device="meta")


@handles(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradient and nothing else."""
    return torch.empty_like(args[0]) if args[0].is_meta else func(*args, **kwargs)
