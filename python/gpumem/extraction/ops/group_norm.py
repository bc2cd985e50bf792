"""Group norm. Sources: `ATen/native/group_norm.cpp`, `cuda/group_norm_kernel.cu`; checked against the virtual GPU."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries
from gpumem.extraction.tensor_iterator import empty_preserving

aten = torch.ops.aten


def _accumulate_itemsize(x: torch.Tensor) -> int:
    return max(4, x.element_size())


@handles(aten.native_group_norm.default)
def native_group_norm(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All contiguous: output, mean, reciprocal deviation; then a copy of the input, one scale and shift per channel."""
    x, weight, bias, batch, channels, pixels, groups = args[:7]
    if not x.is_meta:
        return func(*args, **kwargs)
    output = torch.empty(x.shape, dtype=x.dtype, device="meta")
    statistics = weight.dtype if weight is not None else x.dtype
    mean = torch.empty((batch, groups), dtype=statistics, device="meta")
    rstd = torch.empty((batch, groups), dtype=statistics, device="meta")
    rec.requested(output, mean, rstd)
    with Temporaries(rec) as tmp:
        tmp.contiguous(x)
        if statistics.itemsize < _accumulate_itemsize(x):
            # Mean and deviation are computed in fp32 and then rounded.
            tmp.alloc(batch * groups * _accumulate_itemsize(x))
            tmp.alloc(batch * groups * _accumulate_itemsize(x))
        if pixels != 1 and (weight is not None or bias is not None):
            tmp.alloc(batch * channels * _accumulate_itemsize(x))
            tmp.alloc(batch * channels * _accumulate_itemsize(x))
    return output, mean, rstd


@handles(aten.native_group_norm_backward.default)
def native_group_norm_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copies, the three gradients, then sums per channel and per group."""
    grad, x, _, _, weight, batch, channels, pixels, groups, mask = args
    if not x.is_meta:
        return func(*args, **kwargs)
    per_channel = batch * channels * _accumulate_itemsize(x)
    per_group = batch * groups * _accumulate_itemsize(x)
    with Temporaries(rec) as tmp:
        tmp.contiguous(x)
        tmp.contiguous(grad)
        grad_input = None
        if mask[0]:
            grad_input = torch.empty(x.shape, dtype=x.dtype, device="meta")
        grad_weight = empty_preserving(weight) if mask[1] else None
        grad_bias = empty_preserving(weight) if mask[2] else None
        rec.requested(grad_input, grad_weight, grad_bias)
        if pixels != 1:
            tmp.alloc(per_channel)
            tmp.alloc(per_channel)
        if mask[0]:
            tmp.alloc(per_group)
            tmp.alloc(per_group)
            if pixels != 1 and weight is not None:
                tmp.alloc(per_channel)
    return grad_input, grad_weight, grad_bias
