"""Pointwise ops that are one kernel on CUDA and several on meta, and formulas of autograd that are in place on CUDA."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.engine import called_by_engine
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder

aten = torch.ops.aten
# Nodes whose formula fills or combines its own temporary: in place on CUDA, out of place for subclass-like tensors.
_FILLS_TEMPORARY = frozenset(
    {"MaximumBackward0", "MinimumBackward0", "FmaxBackward0", "FminBackward0", "ClampBackward0"}
)
_COMBINES_TEMPORARY = frozenset({"MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"})


def _node() -> str:
    node = torch._C._current_autograd_node()
    return "" if node is None else node.name()


@handles(aten.masked_fill.Scalar)
def masked_fill(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In place in the backward of `maximum`, of `clamp` by tensors, and their like."""
    x, mask = args[0], args[1]
    if x.is_meta and x.shape == mask.shape and called_by_engine(rec) and _node() in _FILLS_TEMPORARY:
        return x
    return func(*args, **kwargs)


@handles(aten.logical_and.default, aten.logical_or.default)
def logical_combination(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In place where autograd finds the elements that equal the extremum."""
    x, other = args
    fits = torch.broadcast_shapes(x.shape, other.shape) == x.shape
    if x.is_meta and fits and called_by_engine(rec) and _node() in _COMBINES_TEMPORARY:
        return x
    return func(*args, **kwargs)


@chooses("mish_backward")
def mish_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One kernel on CUDA; the composite formula only where its own gradient is wanted."""
    if torch.is_grad_enabled():
        squashed = torch.tanh(torch.nn.functional.softplus(x))
        return grad * (squashed + x * torch.sigmoid(x) * (1 - squashed * squashed))
    return torch.empty_like(x)
