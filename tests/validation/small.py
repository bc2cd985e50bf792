"""Small models that behave, and models that do not; the process on the device imports them from here."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Mlp(nn.Module):
    """A small model; `effect` is called in its forward pass on a device, not in a trace."""

    def __init__(self, effect: Callable[[torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 10)
        self.effect = effect

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.effect is not None and not _traced(x):
            self.effect(x)
        result: torch.Tensor = self.second(self.first(x).relu())
        return result


class Block(nn.Module):
    """Worth a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 1024), nn.Linear(1024, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.second(self.first(x).relu())
        return result


def blocks() -> nn.Module:
    """Repeated blocks, for plans."""
    return nn.Sequential(*(Block() for _ in range(6)), nn.Linear(64, 10))


def _traced(x: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return x.is_meta


def abort(x: torch.Tensor) -> None:
    """As a failed assertion in C++ does."""
    print("about to abort", flush=True)
    os.abort()


def segfault(x: torch.Tensor) -> None:
    """As a stray pointer does."""
    ctypes.string_at(8)


def leave(x: torch.Tensor) -> None:
    """Without a word."""
    os._exit(7)


def spin(x: torch.Tensor) -> None:
    """For ever, busily."""
    while True:
        pass


def fail(x: torch.Tensor) -> None:
    """As a bug in the model does."""
    raise ValueError("only on the device")


def break_device(x: torch.Tensor) -> None:
    """As an assertion in a kernel does: from then on every call fails."""

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    for name in ("synchronize", "empty_cache", "mem_get_info"):
        setattr(torch.cuda, name, broken)
    broken()


def fill(x: torch.Tensor) -> None:
    """More than any prediction knows of."""
    x.new_empty(1 << 44)


def hold(x: torch.Tensor) -> torch.Tensor:
    """Memory that the trace does not see."""
    return x.new_empty(1 << 24)


def quiet() -> tuple[nn.Module, tuple[int]]:
    """A factory."""
    return Mlp(), (64,)


def local() -> tuple[nn.Module, tuple[int]]:
    """A factory of a class that has no importable name."""

    class Local(Mlp):
        pass

    return Local(), (64,)


def own_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> torch.Tensor:
    """A training step of the user's."""
    optimizer.zero_grad()
    loss: torch.Tensor = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def own_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer of the user's."""
    return torch.optim.Adam(parameters, lr=0.1, amsgrad=True)


def leaks() -> tuple[nn.Module, tuple[int]]:
    """A factory of a model that takes more on a device than in a trace."""
    return Mlp(hold), (64,)


class Convolutions(nn.Module):
    """Convolutions of every kind that cuDNN plans differently, in one forward pass; channels_last has no volumes."""

    def __init__(self, volumes: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, stride=2, padding=3)
        self.plane = nn.ModuleList(
            [
                nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
                nn.Conv2d(64, 64, 3, padding=2, dilation=2),
                nn.Conv2d(64, 128, 3, padding=1, groups=4),
                nn.Conv2d(128, 128, 3, padding=1, groups=128),
                nn.Conv2d(128, 64, 1),
                nn.Conv2d(64, 48, (1, 7), padding=(0, 3)),
                nn.ConvTranspose2d(48, 32, 3, stride=2, padding=1, output_padding=1),
                nn.ConvTranspose2d(32, 32, 4, stride=2, padding=1, groups=2),
            ]
        )
        volume = [nn.Conv3d(8, 16, 3, padding=1), nn.ConvTranspose3d(16, 8, 2, stride=2)] if volumes else []
        self.volume = nn.ModuleList(volume)
        self.row = nn.Conv1d(8, 16, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.plane:
            x = layer(x).relu()
        x = x.reshape(x.shape[0], 8, 4, *x.shape[2:])
        for layer in self.volume:
            x = layer(x).relu()
        result: torch.Tensor = self.row(x.mean(4).flatten(2)).mean(2)
        return result
