"""`unet:` U-Nets: plain, with transposed or bilinear upsampling, with group norm and attention, and in 3-D."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpumem.extraction.inputs import parse_input
from tests.parity.models.base import LoadedModel


class _UNet(nn.Module):
    """Encoder, decoder, skips joined by concatenation."""

    def __init__(self, *, dims: int = 2, up: str = "transposed", norm: str = "batch", attention: bool = False) -> None:
        super().__init__()
        self._conv: Any = nn.Conv2d if dims == 2 else nn.Conv3d
        self._up_conv: Any = nn.ConvTranspose2d if dims == 2 else nn.ConvTranspose3d
        self._norm: Any = {"batch": nn.BatchNorm2d if dims == 2 else nn.BatchNorm3d, "group": _group_norm}[norm]
        widths = (16, 32, 64)
        self.down = nn.ModuleList()
        channels = 3
        for width in widths:
            self.down.append(self._block(channels, width))
            channels = width
        self.pool: Any = nn.MaxPool2d(2) if dims == 2 else nn.MaxPool3d(2)
        self.middle = self._block(channels, 128)
        self.attention = nn.MultiheadAttention(128, 4, batch_first=True) if attention else None
        channels = 128
        self.up, self.join = nn.ModuleList(), nn.ModuleList()
        for width in reversed(widths):
            if up == "transposed":
                self.up.append(self._up_conv(channels, width, 2, stride=2))
            else:
                mode = "bilinear" if dims == 2 else "trilinear"
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2, mode=mode), self._conv(channels, width, 1)))
            self.join.append(self._block(2 * width, width))
            channels = width
        self.head = self._conv(channels, 5, 1)

    def _block(self, inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [
                self._conv(channels, outputs, 3, padding=1, bias=False),
                self._norm(outputs),
                nn.ReLU(inplace=True),
            ]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x)
        if self.attention is not None:
            tokens = x.flatten(2).transpose(1, 2)
            x = x + self.attention(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(x.shape)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


_BUILDERS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "plain": ({}, (3, 96, 96)),
    "bilinear": ({"up": "bilinear"}, (3, 96, 96)),
    "group_norm_attention": ({"norm": "group", "attention": True}, (3, 96, 96)),
    "3d": ({"dims": 3}, (3, 16, 32, 32)),
    "3d_trilinear_group_norm": ({"dims": 3, "up": "trilinear", "norm": "group"}, (3, 16, 32, 32)),
}


def names() -> list[str]:
    """All variants."""
    return list(_BUILDERS)


def load(name: str) -> LoadedModel:
    """One variant."""
    arguments, shape = _BUILDERS[name]
    return LoadedModel(_UNet(**arguments), parse_input(shape))
