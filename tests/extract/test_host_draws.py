"""Layers dropped by chance: the course that needs more memory is predicted, and said."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from gpumem.api import extract

# Each draws one number from [0, 1).
DRAWS: dict[str, Callable[[], float]] = {
    "torch, no dimension": lambda: torch.rand([]).item(),
    "torch, one dimension": lambda: torch.rand(1).item(),
    # Looked up when it is called, as programs do.
    "random": lambda: random.random(),
    "uniform": lambda: random.uniform(0, 1),
    "numpy": lambda: float(np.random.random()),
    "numpy, uniform": lambda: float(np.random.uniform(0, 1)),
}


class Dropping(nn.Module):
    """Eight layers, each of which runs if its draw passes."""

    def __init__(self, passes: Callable[[], bool]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self.head = nn.Linear(64, 10)
        self.passes = passes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.passes():
                x = layer(x).relu()
        y: torch.Tensor = self.head(x)
        return y


def _peak_bytes(passes: Callable[[], bool]) -> int:
    return extract(Dropping(passes), (64,)).estimate(256).requested_peak.high


@pytest.mark.parametrize("name", DRAWS)
def test_no_layer_is_dropped(name: str) -> None:
    draw = DRAWS[name]
    assert _peak_bytes(lambda: draw() > 0.9) == _peak_bytes(lambda: True)


def test_the_other_way_round_is_the_same() -> None:
    assert _peak_bytes(lambda: random.random() < 0.1) == _peak_bytes(lambda: True)


def test_it_is_said_with_the_place() -> None:
    assumptions = "\n".join(extract(Dropping(lambda: random.random() > 0.5), (64,)).estimate(4).assumptions)
    assert "drawn on the host" in assumptions
    assert "test_host_draws.py" in assumptions
    assert "needs more memory" in assumptions


def test_waiting_for_another_number_ends() -> None:
    def waits() -> bool:
        while random.random() > 0.5:
            pass
        return True

    assert _peak_bytes(waits) == _peak_bytes(lambda: True)
