"""Layer norm. Source: `ATen/native/cuda/layer_norm_kernel.cu`; checked against the virtual GPU."""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


def statistics_dtype(x: torch.Tensor) -> torch.dtype:
    """Element type of mean and reciprocal deviation."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def statistics_shape(x: torch.Tensor, normalized: list[int]) -> list[int]:
    """One value per row, with the normalised dimensions kept as ones."""
    return [*x.shape[: x.dim() - len(normalized)], *([1] * len(normalized))]


def parameter_gradient_scratch(
    rec: Recorder, rows: int, columns: int, grad_weight: torch.Tensor | None, grad_bias: torch.Tensor | None
) -> None:
    """Partial blocks of the weight and bias gradients when there are many short rows, requested and freed now.

    Formula `layer_norm_backward`: `[rows, columns, itemsize, weight_gradient, bias_gradient]`, the gradients as indices
    of their allocations (-1: none). With more than 65,536 rows and `columns / 32 < SMs / 2` the kernel writes
    `[blocks, columns]` partial sums per gradient, which a reduction over the blocks adds into a new gradient; the one
    requested before is then freed.
    """
    gradients = [gradient for gradient in (grad_weight, grad_bias) if gradient is not None]
    if gradients:
        weight, bias = (
            -1 if gradient is None else rec.allocation_of(gradient) for gradient in (grad_weight, grad_bias)
        )
        rec.scratch("layer_norm_backward", [rows, columns, gradients[0].element_size(), weight, bias])


@handles(aten.native_layer_norm.default)
def native_layer_norm(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Contiguous copies of what is not, then output, mean and reciprocal deviation."""
    x, normalized, weight, bias = args[0], args[1], args[2], args[3]
    if not x.is_meta:
        return func(*args, **kwargs)
    with Temporaries(rec) as tmp:
        tmp.contiguous(x)
        tmp.contiguous(weight)
        tmp.contiguous(bias)
        output = torch.empty(x.shape, dtype=x.dtype, device="meta")
        shape, dtype = statistics_shape(x, normalized), statistics_dtype(x)
        mean = torch.empty(shape, dtype=dtype, device="meta")
        rstd = torch.empty(shape, dtype=dtype, device="meta")
        rec.requested(output, mean, rstd)
    return output, mean, rstd


@handles(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy of the input, the three gradients, then a copy of the output's gradient."""
    grad, x, normalized, _, _, weight, bias, mask = args[:8]
    if not x.is_meta:
        return func(*args, **kwargs)
    columns = math.prod(normalized)
    with Temporaries(rec) as tmp:
        tmp.contiguous(x)
        tmp.contiguous(weight)
        tmp.contiguous(bias)
        grad_input = torch.empty(x.shape, dtype=x.dtype, device="meta") if mask[0] else None
        grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta") if mask[1] else None
        grad_bias = torch.empty(bias.shape, dtype=bias.dtype, device="meta") if mask[2] else None
        rec.requested(grad_input, grad_weight, grad_bias)
        tmp.contiguous(grad)
        if columns:
            parameter_gradient_scratch(rec, x.numel() // columns, columns, grad_weight, grad_bias)
    return grad_input, grad_weight, grad_bias
