"""Binary cross-entropy from logits: several in-place steps on CUDA (`ATen/native/Loss.cpp`, `FunctionsManual.cpp`)."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.engine import called_by_engine
from gpumem.extraction.ops.pointwise import like_operands
from gpumem.extraction.ops.reduction_scratch import reduce_scratch
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
# `at::Reduction`
_NONE, _MEAN = 0, 1
_POS_WEIGHT, _REDUCTION = 3, 4
_NODE = "BinaryCrossEntropyWithLogitsBackward0"


@handles(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """The log-sigmoid, the factor of a positive weight, the elements' losses, then the scalar."""
    x, target = args[:2]
    output: torch.Tensor
    if not x.is_meta or kwargs:
        output = func(*args, **kwargs)
        return output
    pos_weight = args[_POS_WEIGHT] if len(args) > _POS_WEIGHT else None
    reduction = args[_REDUCTION] if len(args) > _REDUCTION else _MEAN
    losses = torch.empty(torch.broadcast_shapes(x.shape, target.shape), dtype=x.dtype, device="meta")
    nbytes = losses.numel() * losses.element_size()
    with Temporaries(rec) as tmp:
        tmp.alloc(x.numel() * x.element_size())
        if pos_weight is not None:
            less_one = tmp.alloc(pos_weight.numel() * pos_weight.element_size())
            factor = tmp.alloc(nbytes)
            tmp.free(less_one, factor)
        if reduction == _NONE:
            rec.requested(losses)
            return losses
        tmp.alloc(nbytes)
        output = torch.empty((), dtype=x.dtype, device="meta")
        rec.requested(output)
        reduce_scratch(rec, losses)
    return output


@handles(aten.sub.Tensor, aten.mul.Tensor)
def combination(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """In place in the backward from logits, but for the product of a (smaller) positive weight and the target."""
    x, other = args
    if rec.in_backward and isinstance(x, torch.Tensor) and isinstance(other, torch.Tensor):
        node = torch._C._current_autograd_node()
        is_step = node is not None and node.name() == _NODE and called_by_engine(rec)
        if is_step and torch.broadcast_shapes(x.shape, other.shape) == x.shape:
            return x
    return like_operands(func, args, kwargs)
