"""Small models with repeated blocks."""

from __future__ import annotations

import torch
from torch import nn

WIDTH, HEADS, HIDDEN = 1024, 16, 4096
"""Of `Decoder`."""


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))
        return x + out


class Tower(nn.Module):
    """Blocks, of which some are wider, then a head."""

    def __init__(self, hidden: tuple[int, ...] = (256, 256, 1024, 256, 512)) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(64, width) for width in hidden)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x.mean(dim=1))
        return out


class _Activated(Block):
    """A block whose first operation may write to its argument."""

    def __init__(self, inplace: bool) -> None:
        super().__init__(64, 256)
        self.activation = nn.ReLU(inplace=inplace)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.activation(x))


class Overwriting(nn.Module):
    """Blocks of which some write to their argument; such a one cannot be run again."""

    def __init__(self, inplace: tuple[bool, ...]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Activated(flag) for flag in inplace)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 2 * x
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x.mean(dim=1))
        return out


SAMPLE = (128, 64)
"""Shape of one sample of `Tower`."""


class _GatedLayer(nn.Module):
    """Attention, then a gated feed-forward part as Llama has it: on a roofline its products cost most of it all."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.gate = nn.Linear(WIDTH, HIDDEN)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + nn.functional.scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2)
        y = self.norm(x)
        out: torch.Tensor = self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return x + out


class Decoder(nn.Module):
    """Layers, and a number for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_GatedLayer() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.mean(dim=(1, 2))
