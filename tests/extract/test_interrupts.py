"""Ctrl-C while a model is traced."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import gpumem


@pytest.fixture(autouse=True)
def in_the_foreground() -> Iterator[None]:
    """A shell's background jobs ignore Ctrl-C, and tests may be one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class _Interrupted(nn.Module):
    """Asks for its own interruption, then goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.went_on = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        signal.raise_signal(signal.SIGINT)
        self.went_on = True
        out: torch.Tensor = self.layer(x)
        return out


def test_ctrl_c_ends_the_trace_at_the_next_operation() -> None:
    before = signal.getsignal(signal.SIGINT)
    model = _Interrupted()
    with pytest.raises(KeyboardInterrupt):
        gpumem.extract(model, (8,))
    assert signal.getsignal(signal.SIGINT) is before
    assert not model.went_on


def test_a_second_ctrl_c_is_taken_at_once() -> None:
    class Twice(_Interrupted):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("the second one was not taken")

    with pytest.raises(KeyboardInterrupt):
        gpumem.extract(Twice(), (8,))
