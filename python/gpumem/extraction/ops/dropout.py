"""Dropout: one fused kernel on CUDA with a byte mask. Source: `ATen/native/{Dropout.cpp,cuda/Dropout.cu}`."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.memory_format import suggest_memory_format
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder
from gpumem.extraction.tensor_iterator import empty_preserving

aten = torch.ops.aten


@chooses("dropout")
def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """`aten::dropout`: fused for 0 < p < 1, nothing without effect, a product with zeros for p = 1."""
    if not train or p == 0 or not x.numel():
        return x
    output: torch.Tensor
    if p < 1:
        output = aten.native_dropout.default(x, p, train)[0]
        return output
    return x.mul(aten.zeros.default([], dtype=x.dtype, device=x.device))


@handles(aten.native_dropout.default)
def native_dropout(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The mask, then the output."""
    x, _, train = args
    if not x.is_meta or train is False:
        return func(*args, **kwargs)
    mask = empty_preserving(x, torch.bool)
    output = empty_preserving(x)
    rec.requested(mask, output)
    return output, mask


@handles(aten.native_dropout_backward.default)
def native_dropout_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradient in the layout that the incoming one suggests."""
    grad = args[0]
    if not grad.is_meta:
        return func(*args, **kwargs)
    return torch.empty(grad.shape, dtype=grad.dtype, device="meta", memory_format=suggest_memory_format(grad))
