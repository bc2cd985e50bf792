"""RMS norm: fused on CUDA, composite on meta. Source: `layer_norm_kernel.cu`; checked against the virtual GPU."""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.ops.layer_norm import parameter_gradient_scratch, statistics_dtype, statistics_shape
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.overloads import overload
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


@chooses("rms_norm", calls="_fused_rms_norm_backward")
def rms_norm(
    x: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """`aten::rms_norm`: the fused op, or plain arithmetic when input and weight differ in type."""
    normalized = list(normalized_shape)
    if weight is not None and weight.dtype != x.dtype:
        return _composite(x, normalized, weight, torch.finfo(torch.float32).eps if eps is None else eps)
    output: torch.Tensor = _FusedRmsNorm.apply(x, normalized, weight)
    return output


def _composite(x: torch.Tensor, normalized: list[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`rms_norm_composite` of `ATen/native/layer_norm.cpp`."""
    wide = x.to(statistics_dtype(x))
    dims = list(range(x.dim() - len(normalized), x.dim()))
    # The temporaries of one C++ expression live until its end.
    squares = wide.pow(2)
    means = squares.mean(dims, keepdim=True).add_(eps)
    rstd = means.rsqrt()
    del squares, means
    return wide.mul(rstd).mul(weight).type_as(x).contiguous()


class _FusedRmsNorm(torch.autograd.Function):
    """`_fused_rms_norm` with its derivative: on meta the op is composite and autograd never sees it.

    The ops are called below autograd, so that the recorder's handlers answer for them.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, normalized: list[int], weight: torch.Tensor | None) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            output, rstd = aten._fused_rms_norm.default(x, normalized, weight, None)
        ctx.save_for_backward(x, weight, rstd)
        ctx.normalized = normalized
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        with torch._C._AutoDispatchBelowAutograd():
            grad_input, grad_weight = aten._fused_rms_norm_backward.default(
                grads[0], x, ctx.normalized, rstd, weight, mask
            )
        return grad_input, None, grad_weight


@handles(overload("_fused_rms_norm"))
def fused_rms_norm(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Contiguous copies, output, reciprocal root mean square."""
    x, normalized, weight = args[0], args[1], args[2]
    with Temporaries(rec) as tmp:
        tmp.contiguous(x)
        tmp.contiguous(weight)
        output = torch.empty(x.shape, dtype=x.dtype, device="meta")
        rstd = torch.empty(statistics_shape(x, normalized), dtype=statistics_dtype(x), device="meta")
        rec.requested(output, rstd)
    return output, rstd


@handles(overload("_fused_rms_norm_backward"))
def fused_rms_norm_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy of the input, the gradients, then a copy of the output's gradient, as layer norm."""
    grad, x, normalized, _, weight, mask = args
    columns = math.prod(normalized)
    with Temporaries(rec) as tmp:
        tmp.contiguous(x)
        tmp.contiguous(weight)
        grad_input = torch.empty(x.shape, dtype=x.dtype, device="meta") if mask[0] else None
        grad_weight = None
        if mask[1] and weight is not None:
            grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
        rec.requested(grad_input, grad_weight)
        tmp.contiguous(grad)
        if columns:
            parameter_gradient_scratch(rec, x.numel() // columns, columns, grad_weight, None)
    return grad_input, grad_weight
