"""Connectionist temporal classification (`ATen/native/LossCTC.cpp`, `cuda/LossCTC.cu`).

Lengths on the device are data. On CUDA they are read by the host; here they are taken as long as they can be.
"""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_INDEX_BYTES = 8


def _lengths(lengths: torch.Tensor, count: int, longest: int) -> list[int]:
    return [longest] * count if lengths.device.type == "meta" else lengths.tolist()


@chooses("ctc_loss.Tensor")
def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """With lengths as tensors: CUDA reads them; tensors that count as subclass-like keep them."""
    batch = log_probs.shape[1] if log_probs.dim() == 3 else 1
    output: torch.Tensor = aten.ctc_loss.IntList(
        log_probs,
        targets,
        _lengths(input_lengths, batch, log_probs.shape[0]),
        # Targets are a row per sample, or all of them in one row.
        _lengths(target_lengths, batch, targets.shape[-1]),
        blank,
        reduction,
        zero_infinity,
    )
    return output


@handles(aten._ctc_loss.default)
def ctc_loss_forward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Both lengths and the targets' offsets on the device, the forward variables, the losses."""
    log_probs, _targets, _input_lengths, target_lengths = args[:4]
    if not log_probs.is_meta:
        return func(*args, **kwargs)
    steps, batch, _ = log_probs.shape
    states = 2 * max(target_lengths, default=0) + 1
    with Temporaries(rec) as tmp:
        for _ in range(3):
            tmp.alloc(batch * _INDEX_BYTES)
        log_alpha = torch.empty((batch, steps, states), dtype=log_probs.dtype, device="meta")
        losses = torch.empty((batch,), dtype=log_probs.dtype, device="meta")
        rec.requested(log_alpha, losses)
    return losses, log_alpha


@handles(aten._ctc_loss_backward.default)
def ctc_loss_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lengths and offsets again, the backward variables, the gradient; a second one without infinities if asked for."""
    log_probs, losses, log_alpha = args[1], args[5], args[6]
    zero_infinity = args[8] if len(args) > 8 else kwargs.get("zero_infinity", False)
    if not log_probs.is_meta:
        return func(*args, **kwargs)
    item = log_probs.element_size()
    with Temporaries(rec) as tmp:
        for _ in range(3):
            tmp.alloc(losses.numel() * _INDEX_BYTES)
        tmp.alloc(log_alpha.numel() * item)
        gradient = torch.empty(log_probs.shape, dtype=log_probs.dtype, device="meta")
        if zero_infinity:
            tmp.alloc(gradient.numel() * item)
            tmp.alloc(losses.numel())
            tmp.alloc(item)
        rec.requested(gradient)
    return gradient
