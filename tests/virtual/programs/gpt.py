"""A GPT in the shape of nanoGPT's: pre-norm blocks, tied embedding, PyTorch's attention; also with checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Size:
    length: int = 128
    words: int = 5120
    layers: int = 4
    heads: int = 8
    width: int = 512
    dropout: float = 0.1


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.dropout = size.heads, size.dropout
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.drop = nn.Dropout(size.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        result: torch.Tensor = self.drop(self.out(y.transpose(1, 2).contiguous().view(batch, length, width)))
        return result


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size.width, bias=False), nn.LayerNorm(size.width, bias=False)
        self.attention = Attention(size)
        self.feed_forward = nn.Sequential(
            nn.Linear(size.width, 4 * size.width, bias=False),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width, bias=False),
            nn.Dropout(size.dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        result: torch.Tensor = x + self.feed_forward(self.norm2(x))
        return result


class Gpt(nn.Module):
    """Attributes: checkpoint_kind: None, `reentrant`, or `non-reentrant`, for every block."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.length, size.width)
        self.drop = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.head = nn.Linear(size.width, size.words, bias=False)
        self.tokens.weight = self.head.weight
        self.checkpoint_kind: str | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], dtype=torch.long, device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.places(places))
        for block in self.blocks:
            if self.checkpoint_kind is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpoint_kind == "reentrant")
        result: torch.Tensor = self.head(self.norm(x))
        return result


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
