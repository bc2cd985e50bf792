"""Attention: scaled dot product in its forms, nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

from tests.parity.models.op_net import Op, function, module


def _heads(h: torch.Tensor, heads: int) -> torch.Tensor:
    """`[b, 64, 128]` to `[b, heads, 64, 128 / heads]` without a copy."""
    return h.view(h.shape[0], 64, heads, 128 // heads).transpose(1, 2)


def _mask(h: torch.Tensor) -> torch.Tensor:
    return torch.zeros(64, 64, dtype=h.dtype, device=h.device)


def _attend_to(heads: torch.Tensor, mask: torch.Tensor | None = None, **arguments: Any) -> torch.Tensor:
    return f.scaled_dot_product_attention(heads, heads, heads, mask, **arguments)


def _attend(h: torch.Tensor, mask: torch.Tensor | None = None, **arguments: Any) -> torch.Tensor:
    return _attend_to(_heads(h, 4), mask, **arguments)


def _grouped(h: torch.Tensor) -> torch.Tensor:
    few = _heads(h, 4)[:, :2]
    return f.scaled_dot_product_attention(_heads(h, 4), few, few, enable_gqa=True)


def _multi_query(h: torch.Tensor) -> torch.Tensor:
    one = _heads(h, 4)[:, :1]
    return f.scaled_dot_product_attention(_heads(h, 4), one, one)


class _SelfAttention(nn.Module):
    def __init__(self, need_weights: bool, batch_first: bool = True) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(128, 4, batch_first=batch_first, dropout=0.0)
        self.need_weights = need_weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.inner.batch_first:
            x = x.transpose(0, 1)
        output: torch.Tensor = self.inner(x, x, x, need_weights=self.need_weights)[0]
        return output if self.inner.batch_first else output.transpose(0, 1)


OPS: dict[str, Op] = {
    "sdpa": function("tokens", lambda h, x: _attend(h)),
    "sdpa_causal": function("tokens", lambda h, x: _attend(h, is_causal=True)),
    "sdpa_dropout": function("tokens", lambda h, x: _attend(h, dropout_p=0.1)),
    "sdpa_mask": function("tokens", lambda h, x: _attend(h, _mask(h))),
    "sdpa_bool_mask": function("tokens", lambda h, x: _attend(h, _mask(h).bool())),
    "sdpa_learned_mask": function("tokens", lambda h, x: _attend(h, h[:, None, :, :64] * 1)),
    "sdpa_gqa": function("tokens", lambda h, x: _grouped(h)),
    "sdpa_multi_query": function("tokens", lambda h, x: _multi_query(h)),
    "sdpa_contiguous": function("tokens", lambda h, x: _attend_to(_heads(h, 4).contiguous())),
    "sdpa_odd_head": function("tokens", lambda h, x: _attend_to(_heads(h, 4)[..., :30])),
    "sdpa_math": function("tokens", lambda h, x: _math(h)),
    "sdpa_cross": function(
        "tokens", lambda h, x: f.scaled_dot_product_attention(_heads(h, 4)[:, :, :10], _heads(h, 4), _heads(h, 4))
    ),
    "mha": module("tokens", lambda: _SelfAttention(need_weights=False)),
    "mha_weights": module("tokens", lambda: _SelfAttention(need_weights=True)),
    "mha_sequence_first": module("tokens", lambda: _SelfAttention(need_weights=False, batch_first=False)),
}


def _math(h: torch.Tensor) -> torch.Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return _attend(h)
