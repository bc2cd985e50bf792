"""Small models with everything that a region must live with, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any] | tuple[Any, ...]


class Residual(nn.Module):
    """Convolutions with batch norm, in-place activations and an in-place sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.BatchNorm2d(channels, momentum=None),
        )
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x)
        out += x
        return self.last(out)  # type: ignore[no-any-return]


class Convolutional(nn.Module):
    """A stem, four residual blocks, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList(Residual(8) for _ in range(4))
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Flatten(), nn.Linear(8 * 64, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Two LSTMs, of which each returns a tuple with a tuple in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(6, 8, num_layers=2, dropout=0.2, batch_first=True)
        self.second = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, state = self.first(x)
        x, _ = self.second(x)
        return self.head(x) + state[0].mean()  # type: ignore[no-any-return]


class Attending(nn.Module):
    """A pre-norm transformer whose layers take keywords."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)  # type: ignore[no-any-return]


class Dense(nn.Module):
    """Layers that are given a list, which their caller then extends."""

    class Layer(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(channels)
            self.linear = nn.Linear(channels, 4)
            self.narrow = nn.Linear(4, 4)

        def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
            return self.narrow(self.linear(self.norm(torch.cat(features, 1))).relu())  # type: ignore[no-any-return]

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer(4 * (1 + index)) for index in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


def plain_sequence() -> nn.Sequential:
    """Convolutions followed by in-place activations, with pooling between them, as in VGG."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(8 * 16, 4),
    )


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and regions that are disjoint."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    regions: tuple[str, ...]


def _image() -> Inputs:
    return (torch.randn(2, 3, 8, 8),)


CASES = {
    "convolutional": Case(Convolutional, _image, ("stem", "blocks.0", "blocks.2", "blocks.3", "head")),
    "sequence": Case(plain_sequence, _image, ("[0:5]", "[5:9]")),
    "recurrent": Case(Recurrent, lambda: (torch.randn(2, 5, 6),), ("first", "second")),
    "attending": Case(Attending, lambda: (torch.randint(0, 40, (2, 7)),), ("layers.0", "layers.1", "layers.2")),
    "parts": Case(
        Attending, lambda: (torch.randint(0, 40, (2, 7)),), ("layers.0.self_attn", "layers.1.self_attn", "embedding")
    ),
    "dense": Case(Dense, lambda: (torch.randn(6, 4),), ("layers.0", "layers.1", "layers.2", "layers.3")),
}
