"""Ops that move elements: roll, one_hot, weight_norm. Checked against the virtual GPU."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


@handles(aten.roll.default)
def roll(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One dimension: a contiguous copy, then the output. Several: each rolled tensor lives until the last is made."""
    x = args[0]
    if not x.is_meta:
        return func(*args, **kwargs)
    dims = max(1, len(args[2]) if len(args) > 2 else 1)
    output = torch.empty(x.shape, dtype=x.dtype, device="meta")
    with Temporaries(rec) as tmp:
        copy = tmp.contiguous(x)
        for _ in range(dims - 1):
            tmp.alloc(x.numel() * x.element_size())
            tmp.free(copy)
            copy = None
        rec.requested(output)
    return output


@chooses("one_hot")
def one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`aten::one_hot`: zeros and a scatter; meta compares with a range instead."""
    if num_classes < 0:
        num_classes = int(x.max().item()) + 1
    output: torch.Tensor = aten.zeros.default([*x.shape, num_classes], dtype=x.dtype, device=x.device)
    return output.scatter_(-1, x.unsqueeze(-1), 1)


@handles(aten._weight_norm_interface.default)
def weight_norm(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The weight, contiguous, and the norms in the accumulation type."""
    v, g = args[0], args[1]
    if not v.is_meta:
        return func(*args, **kwargs)
    weight = torch.empty(v.shape, dtype=v.dtype, device="meta")
    dtype = torch.float32 if g.dtype in (torch.float16, torch.bfloat16) else g.dtype
    norms = torch.empty_strided(tuple(g.shape), g.stride(), dtype=dtype, device="meta")
    rec.requested(weight, norms)
    return weight, norms


@handles(aten._weight_norm_interface_backward.default)
def weight_norm_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients of direction and magnitude, contiguous (`WeightNorm.cu`). Before torch 2.9 it has no meta kernel."""
    v, g = args[1], args[2]
    if not v.is_meta:
        return func(*args, **kwargs)
    grad_v = torch.empty(v.shape, dtype=v.dtype, device="meta")
    grad_g = torch.empty(g.shape, dtype=g.dtype, device="meta")
    rec.requested(grad_v, grad_g)
    return grad_v, grad_g


@handles(aten.unfold_backward.default)
def unfold_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradient, then the positions along the unfolded dimension as int64."""
    output = func(*args, **kwargs)
    if output.is_meta:
        rec.requested(output)
        sizes, dim = args[1], args[2]
        with Temporaries(rec) as tmp:
            tmp.alloc(sizes[dim] * torch.int64.itemsize)
    return output
