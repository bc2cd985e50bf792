"""The flat buffer that cuDNN wants the weights of a recurrent layer in, as `ATen/native/cudnn/RNN.cpp` makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# `flatten_parameters` leaves bfloat16 out (`torch.backends.cudnn.is_acceptable`), so that each call flattens anew.
_FLATTENED_DTYPES = (torch.float32, torch.float16, torch.float64)


def flat_elements(weights: Sequence[torch.Tensor], per_layer: int) -> int:
    """Elements of the flat buffer: cuDNN's layers have two biases each, also where the program has none."""
    first = weights[::per_layer]
    biases = 0 if any(w.dim() == 1 for w in weights) else 2 * sum(input_weight.shape[0] for input_weight in first)
    return sum(w.numel() for w in weights) + biases


def flat_buffer(weights: Sequence[torch.Tensor], per_layer: int) -> torch.Tensor:
    """The buffer that the weights are views of, or a new one for copies of them."""
    first = weights[0]
    if all(w.untyped_storage()._cdata == first.untyped_storage()._cdata for w in weights):
        return first.detach()
    return torch.empty(flat_elements(weights, per_layer), dtype=first.dtype, device="meta")


def views(flat: torch.Tensor, shapes: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The weights' places in the buffer."""
    views, start = [], 0
    for weight in shapes:
        views.append(flat[start : start + weight.numel()].view(weight.shape))
        start += weight.numel()
    return tuple(views)


class _CastInto(torch.autograd.Function):
    """A weight copied into its place in a flat buffer; one node each, as `copy_` makes it."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        ctx.dtype = weight.dtype
        return place

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.to(ctx.dtype), None


def cast_flat(weights: Sequence[torch.Tensor], per_layer: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Copies of the weights in one new buffer, as views of it."""
    flat = torch.empty(flat_elements(weights, per_layer), dtype=dtype, device="meta")
    return [_CastInto.apply(w, place) for w, place in zip(weights, views(flat, weights), strict=True)]


def flatten_weights(module: torch.nn.Module | None, cudnn_rnn: bool, made: Callable[[torch.Tensor], None]) -> None:
    """Make the weights views of one new buffer, as `flatten_parameters` does at the end of `.cuda()`.

    Args:
        module: A module whose own parameters have just been moved.
        cudnn_rnn: Whether the target runs recurrent layers on cuDNN.
        made: Is told of the buffer before the weights let go of their own.
    """
    if not isinstance(module, torch.nn.RNNBase) or not cudnn_rnn or not torch.backends.cudnn.enabled:
        return
    weights = [w for w in module._flat_weights if isinstance(w, torch.Tensor)]
    if not weights or len({id(w) for w in weights}) != len(weights) or weights[0].dtype not in _FLATTENED_DTYPES:
        return
    per_layer = len(weights) // (module.num_layers * (2 if module.bidirectional else 1))
    flat = torch.empty(flat_elements(weights, per_layer), dtype=weights[0].dtype, device="meta")
    made(flat)
    for weight, view in zip(weights, views(flat, weights), strict=True):
        weight.data = view
