"""Small models for sweeps; their factories pickle."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.up = nn.Linear(width, 8 * width)
        self.down = nn.Linear(8 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(x).relu())
        return x + out


class Tower(nn.Module):
    """Blocks in a row."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.mean(1)


class Reads(nn.Module):
    """Reads a value, which a trace does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y * y.sum().item()


class Branches(nn.Module):
    """Allocates other things at odd batch sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y if len(x) % 2 else y.relu().exp()


class Attends(nn.Module):
    """Attention, whose kernel depends on the card."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 32)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        out: torch.Tensor = nn.functional.scaled_dot_product_attention(q, k, v)
        return out.transpose(1, 2).flatten(2).mean(1)


def convolutions() -> tuple[nn.Module, tuple[int, ...]]:
    """Convolutions, whose workspaces depend on the card and are not exactly known."""
    layers = [nn.Conv2d(3, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), (3, 64, 64)


def tower(blocks: int = 4) -> tuple[nn.Module, tuple[int, ...]]:
    """A tower and its input."""
    return Tower(blocks), (64, 64)


def reads() -> tuple[nn.Module, tuple[int, ...]]:
    """Cannot be traced."""
    return Reads(), (64,)


def branches() -> tuple[nn.Module, tuple[int, ...]]:
    """Needs a trace for every batch size."""
    return Branches(), (64,)


def attends() -> tuple[nn.Module, tuple[int, ...]]:
    """Needs a trace for every compute capability."""
    return Attends(), (128, 64)


def broken() -> nn.Module:
    """Cannot be built."""
    raise ValueError("no such width")
