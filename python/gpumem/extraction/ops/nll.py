"""Negative log-likelihood, the second half of cross-entropy (`ATen/native/cuda/Loss.cu`, `NLLLoss2d.cu`)."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder

aten = torch.ops.aten
# `at::Reduction::None`
_NO_REDUCTION = 0


def _scalars(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty((), dtype=like.dtype, device="meta"), torch.empty((), dtype=like.dtype, device="meta")


@handles(aten.nll_loss_forward.default)
def nll_loss_forward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One class per row: the loss, then the total weight."""
    log_probs, target, _weight, reduction = args[:4]
    if not log_probs.is_meta or log_probs.dim() != 2 or target.shape != log_probs.shape[:1]:
        return func(*args, **kwargs)
    loss, total_weight = _scalars(log_probs)
    if reduction == _NO_REDUCTION:
        loss = torch.empty(target.shape, dtype=log_probs.dtype, device="meta")
    rec.requested(loss, total_weight)
    return loss, total_weight


@handles(aten.nll_loss_backward.default)
def nll_loss_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A contiguous gradient of full size."""
    log_probs = args[1]
    if not log_probs.is_meta:
        return func(*args, **kwargs)
    return torch.empty(log_probs.shape, dtype=log_probs.dtype, device="meta")


@handles(aten.nll_loss2d_forward.default)
def nll_loss2d_forward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One class per pixel: the total weight, then the loss."""
    loss, total_weight = func(*args, **kwargs)
    rec.requested(total_weight, loss)
    return loss, total_weight
