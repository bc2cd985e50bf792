"""What a program does that changes bytes and is not followed is said in the report."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gpumem.api import extract
from gpumem.errors import ExtractionError
from tests.extract import models


def _assumptions(model: nn.Module) -> str:
    return "\n".join(extract(model, (8,)).estimate(4).assumptions)


def _streamed(y: torch.Tensor) -> torch.Tensor:
    with torch.cuda.stream(torch.cuda.Stream()):
        return y * 2


def _emptied(y: torch.Tensor) -> torch.Tensor:
    torch.cuda.empty_cache()
    return y


def _random(y: torch.Tensor) -> torch.Tensor:
    return y * 2 if random.random() < 0.5 else y


def _penalized(y: torch.Tensor) -> torch.Tensor:
    if not y.requires_grad:
        return y
    (grad,) = torch.autograd.grad(y.tanh().sum(), y, create_graph=True)
    return y * grad


SAID: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "streams": (_streamed, "streams"),
    "empty_cache": (_emptied, "empty_cache"),
    "memory_allocated": (lambda y: y if torch.cuda.memory_allocated() < 10 else y * 2, "memory counter"),
    "memory_stats": (lambda y: y * torch.cuda.memory_stats()["allocated_bytes.all.peak"], "memory counter"),
    "random": (_random, "drawn on the host"),
    "random of torch": (lambda y: y * torch.rand(1).to(y.device), "drawn on the host"),
    "double backward": (_penalized, "create_graph"),
    "compiled function": (torch.compile(lambda y: y * 2), "torch.compile"),
}


@pytest.mark.parametrize("name", SAID)
def test_it_is_said(name: str) -> None:
    function, text = SAID[name]
    assert text in _assumptions(models.After(function))


def test_nothing_is_said_without_a_reason() -> None:
    plain = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    said = _assumptions(plain)
    assert not [text for _, text in SAID.values() if text in said]
    assert "hooks" not in said


def test_compiled_layers_are_said() -> None:
    inner = nn.Linear(8, 4)
    inner.compile()
    assert "torch.compile" in _assumptions(nn.Sequential(inner))
    wrapped = nn.Sequential()
    wrapped.append(torch.compile(nn.Linear(8, 4)))  # type: ignore[arg-type]
    assert "torch.compile" in _assumptions(wrapped)


def test_gradient_hooks_are_said() -> None:
    model = models.mlp()
    next(iter(model.parameters())).register_hook(lambda grad: grad * 2)
    assert "gradient hooks of 1 parameters ('0.weight')" in _assumptions(model)


def test_free_memory_is_not_made_up() -> None:
    def by_free_memory(y: torch.Tensor) -> torch.Tensor:
        return y if torch.cuda.mem_get_info()[0] else y * 2

    with pytest.raises(ExtractionError, match="how much GPU memory is free"):
        _assumptions(models.After(by_free_memory))


def test_parameters_of_another_dtype_are_said() -> None:
    spec = extract(nn.Linear(8, 2).bfloat16(), ((8,), torch.bfloat16))
    said = spec.estimate(4).assumptions

    assert "parameters stay as the model has them: bfloat16" in said
