"""Softmax and log-softmax. Source: `ATen/native/cuda/SoftMax.cu`; checked against the virtual GPU."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


def _choose(op: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    """fp16 to fp32 is one kernel; any other change of type is a copy first."""
    output: torch.Tensor
    if x.dtype == torch.float16 and dtype == torch.float32:
        output = op(x, dim, True)
    else:
        output = op(x if dtype is None else x.to(dtype), dim, False)
    return output


@chooses("softmax.int")
def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`aten::softmax.int`."""
    return _choose(aten._softmax.default, x, dim, dtype)


@chooses("log_softmax.int")
def log_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`aten::log_softmax.int`."""
    return _choose(aten._log_softmax.default, x, dim, dtype)


@handles(aten._softmax.default, aten._log_softmax.default)
def softmax_kernel(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output, then a contiguous copy of the input."""
    x, _, half_to_float = args
    if not x.is_meta:
        return func(*args, **kwargs)
    output = torch.empty(x.shape, dtype=torch.float32 if half_to_float else x.dtype, device="meta")
    rec.requested(output)
    with Temporaries(rec) as tmp:
        tmp.contiguous(x)
    return output


@handles(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def softmax_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output; for softmax the full product of gradient and result; contiguous copies."""
    grad, result, _, dtype = args
    if not grad.is_meta:
        return func(*args, **kwargs)
    output = torch.empty(grad.shape, dtype=dtype, device="meta")
    rec.requested(output)
    with Temporaries(rec) as tmp:
        if func is aten._softmax_backward_data.default:
            product = grad
            if not (grad.is_contiguous() and result.is_contiguous()):
                # The product takes its layout from both.
                product = aten.mul.Tensor(grad, result)
            tmp.alloc(grad.numel() * grad.element_size())
            tmp.contiguous(product)
        else:
            tmp.contiguous(grad)
        tmp.contiguous(result)
    return output
