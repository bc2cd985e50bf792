"""Losses in their reductions, each on the hidden tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as f

from tests.parity.models.op_net import Op, function

_REDUCTIONS = ("mean", "sum", "none")


def _classes(h: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long, device=h.device)


def _elementwise(name: str, reduction: str, **arguments: Any) -> Op:
    return function("tokens", lambda h, x: getattr(f, name)(h, x, reduction=reduction, **arguments))


OPS: dict[str, Op] = {
    f"{name}_{reduction}": _elementwise(name, reduction)
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "poisson_nll_loss")
    for reduction in _REDUCTIONS
}


def _bce_with_logits(reduction: str) -> Op:
    return function("tokens", lambda h, x: f.binary_cross_entropy_with_logits(h, x.sigmoid(), reduction=reduction))


def _cross_entropy(reduction: str) -> Op:
    return function("rows", lambda h, x: f.cross_entropy(h, _classes(h, h.shape[0]), reduction=reduction))


OPS |= {f"bce_with_logits_{reduction}": _bce_with_logits(reduction) for reduction in _REDUCTIONS}
OPS |= {f"cross_entropy_{reduction}": _cross_entropy(reduction) for reduction in _REDUCTIONS}
OPS |= {
    "bce_with_logits_weighted": function(
        "tokens",
        lambda h, x: f.binary_cross_entropy_with_logits(h, x.sigmoid(), pos_weight=torch.ones(128, device=h.device)),
    ),
    "bce_mean": function("tokens", lambda h, x: _bce(h, x)),
    "cross_entropy_smoothing": function(
        "rows", lambda h, x: f.cross_entropy(h, _classes(h, h.shape[0]), label_smoothing=0.1)
    ),
    "cross_entropy_weight": function(
        "rows", lambda h, x: f.cross_entropy(h, _classes(h, h.shape[0]), weight=torch.ones(128, device=h.device))
    ),
    "cross_entropy_ignore": function("rows", lambda h, x: f.cross_entropy(h, _classes(h, h.shape[0]), ignore_index=0)),
    "cross_entropy_soft": function("rows", lambda h, x: f.cross_entropy(h, x.softmax(-1))),
    "cross_entropy_pixels": function("images", lambda h, x: f.cross_entropy(h, _classes(h, h.shape[0], 16, 16))),
    "cross_entropy_tokens": function(
        "tokens", lambda h, x: f.cross_entropy(h.flatten(0, 1), _classes(h, h.shape[0] * 64))
    ),
    "cross_entropy_volume": function("volumes", lambda h, x: f.cross_entropy(h, _classes(h, h.shape[0], *h.shape[2:]))),
    "nll_loss": function("rows", lambda h, x: f.nll_loss(f.log_softmax(h, -1), _classes(h, h.shape[0]))),
    "kl_div_batchmean": function(
        "tokens", lambda h, x: f.kl_div(h.log_softmax(-1), x.softmax(-1), reduction="batchmean")
    ),
    "kl_div_mean": function("tokens", lambda h, x: f.kl_div(h.log_softmax(-1), x.softmax(-1))),
    "kl_div_log_target": function(
        "tokens", lambda h, x: f.kl_div(h.log_softmax(-1), x.log_softmax(-1), log_target=True, reduction="sum")
    ),
    "gaussian_nll_loss": function("tokens", lambda h, x: _gaussian(h, x)),
    "hinge_embedding_loss": function("tokens", lambda h, x: f.hinge_embedding_loss(h, x.sign())),
    "cosine_embedding_loss": function(
        "rows", lambda h, x: f.cosine_embedding_loss(h, x, torch.ones(h.shape[0], device=h.device))
    ),
    "margin_ranking_loss": function("rows", lambda h, x: f.margin_ranking_loss(h, x, x.sign())),
    "multi_margin_loss": function("rows", lambda h, x: f.multi_margin_loss(h, _classes(h, h.shape[0]))),
    "multilabel_soft_margin_loss": function("rows", lambda h, x: f.multilabel_soft_margin_loss(h, x)),
    "triplet_margin_loss": function("rows", lambda h, x: f.triplet_margin_loss(h, x, x + 1)),
    "ctc_loss": function("tokens", lambda h, x: _ctc(h)),
    "focal": function("tokens", lambda h, x: _focal(h, x)),
    "dice": function("images", lambda h, x: _dice(h, x)),
    "contrastive": function("rows", lambda h, x: _contrastive(h)),
}


def _bce(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Autocast refuses `binary_cross_entropy`, so it runs outside."""
    with torch.autocast("cuda", enabled=False):
        return f.binary_cross_entropy(h.float().sigmoid(), x.sigmoid())


def _gaussian(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    variance = x.square() + 1
    return (0.5 * ((h - x).square() / variance + variance.log())).mean()


def _ctc(h: torch.Tensor) -> torch.Tensor:
    batch = h.shape[0]
    with torch.autocast("cuda", enabled=False):
        steps = h.float().log_softmax(-1).transpose(0, 1)
        lengths = torch.full((batch,), 64, dtype=torch.long)
        wanted = torch.full((batch,), 10, dtype=torch.long)
        return f.ctc_loss(steps, torch.ones(batch, 10, dtype=torch.long, device=h.device), lengths, wanted)


def _focal(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p = h.sigmoid()
    each = f.binary_cross_entropy_with_logits(h, x.sigmoid(), reduction="none")
    return (each * (1 - p) ** 2).mean()


def _dice(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    p = h.softmax(1)
    return 1 - (2 * (p * x).sum((2, 3)) / ((p + x).sum((2, 3)) + 1)).mean()


def _contrastive(h: torch.Tensor) -> torch.Tensor:
    """CLIP's loss: a batch x batch matrix of similarities."""
    unit = f.normalize(h, dim=-1)
    return f.cross_entropy(unit @ unit.t(), torch.arange(h.shape[0], device=h.device))
