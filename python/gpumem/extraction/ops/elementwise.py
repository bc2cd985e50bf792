"""Pointwise ops that are one kernel on CUDA and several on meta, and formulas of autograd that are in place on CUDA."""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.ops.engine import called_by_engine, node_name
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
# Nodes whose formula fills or combines its own temporary: in place on CUDA, out of place for subclass-like tensors.
_FILLS_TEMPORARY = frozenset(
    {"MaximumBackward0", "MinimumBackward0", "FmaxBackward0", "FminBackward0", "ClampBackward0", "Atan2Backward0"}
)
_COMBINES_TEMPORARY = frozenset({"MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"})


@handles(aten.masked_fill.Scalar)
def masked_fill(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In place in the backward of `maximum`, of `clamp` by tensors, and their like."""
    x, mask = args[0], args[1]
    if x.is_meta:
        _representable(x, args[2])
        if x.shape == mask.shape and called_by_engine(rec) and node_name() in _FILLS_TEMPORARY:
            return x
    return func(*args, **kwargs)


@handles(aten.masked_fill_.Scalar)
def masked_fill_in_place(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Nothing is requested."""
    if args[0].is_meta:
        _representable(args[0], args[2])
    return func(*args, **kwargs)


def _representable(x: torch.Tensor, number: Any) -> None:
    """CUDA refuses a number that the tensor's type cannot hold; the meta kernel takes any."""
    if x.is_floating_point() and math.isfinite(number) and abs(number) > torch.finfo(x.dtype).max:
        name = {torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}.get(x.dtype, "float")
        raise RuntimeError(f"value cannot be converted to type {name} without overflow")


@handles(aten.masked_fill.Tensor, aten.masked_fill_.Tensor)
def masked_fill_with_tensor(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """CUDA takes the value from the host or the device; the meta kernel wants it where the tensor is."""
    x, mask, value = args
    if x.is_meta and not value.is_meta and not value.dim():
        _representable(x, value.item())
        value = torch.empty((), dtype=value.dtype, device="meta")
    return func(x, mask, value)


@handles(aten.logical_and.default, aten.logical_or.default)
def logical_combination(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In place where autograd finds the elements that equal the extremum."""
    x, other = args
    fits = torch.broadcast_shapes(x.shape, other.shape) == x.shape
    if x.is_meta and fits and called_by_engine(rec) and node_name() in _COMBINES_TEMPORARY:
        return x
    return func(*args, **kwargs)


@handles(aten.isinf.default)
def isinf(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`abs(x) == inf`: the magnitude is a tensor of its own (`TensorCompare.cpp`)."""
    x = args[0]
    with Temporaries(rec) as tmp:
        if x.is_meta and x.is_floating_point():
            tmp.alloc(x.numel() * x.element_size())
        output = func(*args, **kwargs)
        rec.requested(output)
    return output


@handles(aten.where.self)
def where(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Branches of another type than the result's are cast first (`TensorCompare.cpp`: `where_self_out`)."""
    output = func(*args, **kwargs)
    if output.is_meta:
        with Temporaries(rec) as tmp:
            for branch in args[1:3]:
                if branch.is_meta and branch.dtype != output.dtype:
                    tmp.alloc(branch.numel() * output.element_size())
            rec.requested(output)
    return output


@chooses("mish_backward")
def mish_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One kernel on CUDA; the composite formula only where its own gradient is wanted."""
    if torch.is_grad_enabled():
        squashed = torch.tanh(torch.nn.functional.softplus(x))
        return grad * (squashed + x * torch.sigmoid(x) * (1 - squashed * squashed))
    return torch.empty_like(x)
