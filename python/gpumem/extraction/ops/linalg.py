"""Distances and bilinear forms that CUDA computes in several steps inside one op."""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.ops.product_workspaces import cublas_call
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


@handles(aten._euclidean_dist.default)
def euclidean_dist(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`cdist` by matrix product: squared norms, ones, both operands with them appended, the product (root in place)."""
    left, right = args[:2]
    output = func(*args, **kwargs)
    if not output.is_meta:
        return output
    item = left.element_size()
    with Temporaries(rec) as tmp:
        held = []
        for x in (left, right):
            rows = x.numel() // max(1, x.shape[-1])
            squares = tmp.alloc(x.numel() * item)
            norms = tmp.alloc(rows * item)
            tmp.free(squares)
            held.append((norms, tmp.alloc(rows * item), rows))
        scaled = tmp.alloc(left.numel() * item)
        operands = [tmp.alloc((left.numel() + 2 * held[0][2]) * item)]
        tmp.free(held[0][1], held[0][0], scaled)
        operands.append(tmp.alloc((right.numel() + 2 * held[1][2]) * item))
        tmp.free(held[1][0], held[1][1])
        rec.requested(output)
        cublas_call(rec)
        rec.count_flops(2 * output.numel() * (left.shape[-1] + 2))
        tmp.free(operands[1], operands[0])
    return output


@handles(aten._cdist_backward.default)
def cdist_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradient, and one value per pair of rows and column before they are summed."""
    _grad, left, right = args[:3]
    output = func(*args, **kwargs)
    if output.is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            batch = math.prod(torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]))
            tmp.alloc(batch * left.shape[-2] * right.shape[-2] * left.shape[-1] * left.element_size())
    return output


@handles(aten._trilinear.default)
def trilinear(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`bilinear` and its gradients: for each slice of the unrolled dimension two products, added to the output."""
    tensors, expansions, summed = args[:3], args[3:6], set(args[6])
    unrolled = args[7] if len(args) > 7 else kwargs.get("unroll_dim", 1)
    output = func(*args, **kwargs)
    if not output.is_meta:
        return output
    ndim = tensors[0].dim() + len(expansions[0])
    shapes = [_expanded_shape(t, e, ndim) for t, e in zip(tensors, expansions, strict=True)]
    full = torch.broadcast_shapes(*shapes)
    item = output.element_size()
    # A dimension is summed by the first product unless the third tensor has it too.
    first = [
        1 if dim == unrolled or (dim in summed and shapes[2][dim] == 1) else max(shapes[0][dim], shapes[1][dim])
        for dim in range(ndim)
    ]
    second = [1 if dim == unrolled or dim in summed else full[dim] for dim in range(ndim)]
    rec.requested(output)
    for _ in range(full[unrolled]):
        with Temporaries(rec) as tmp:
            tmp.alloc(math.prod(first) * item)
            cublas_call(rec)
            tmp.alloc(math.prod(second) * item)
    return output


def _expanded_shape(tensor: torch.Tensor, expanded: list[int], ndim: int) -> list[int]:
    sizes = iter(tensor.shape)
    return [1 if dim in expanded else next(sizes) for dim in range(ndim)]
