"""What a program does that changes bytes and is not followed is said in the report."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gpumem
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


def test_properties_of_the_card_are_answered_for_the_one_that_is_asked_about() -> None:
    seen: list[tuple[str, int, int, tuple[int, int]]] = []

    def by_card(y: torch.Tensor) -> torch.Tensor:
        card = torch.cuda.get_device_properties(y.device)
        seen.append((card.name, card.total_memory, card.multi_processor_count, torch.cuda.get_device_capability()))
        assert torch.cuda.get_device_name(0) == card.name
        assert card.warp_size == 32
        return y if card.total_memory > 30 * 2**30 else y * 2

    said = extract(models.After(by_card), (8,), gpu="v100-32gb").estimate(4).assumptions
    card = next(gpu for gpu in gpumem.gpus() if gpu.name == "v100-32gb")
    assert set(seen) == {(card.torch_name, card.total_bytes, card.sm_count, (7, 0))}
    assert any("properties of the card" in line and "v100-32gb's" in line for line in said)


def test_unknown_properties_of_the_card_are_named() -> None:
    def by_cache(y: torch.Tensor) -> torch.Tensor:
        return y * torch.cuda.get_device_properties(0).L2_cache_size

    with pytest.raises(ExtractionError, match="L2_cache_size is not known of rtx3090"):
        _assumptions(models.After(by_cache))


def test_what_grows_from_step_to_step_is_said() -> None:
    kept: list[torch.Tensor] = []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        output = model(batch)
        output.sum().backward()
        optimizer.step()
        kept.append(output)

    said = "\n".join(extract(models.mlp(), (8,), step=step).estimate(1000).assumptions)
    assert "memory grows from step to step: step 2 left 15.62 KiB (16,000 bytes) more than the one before" in said
    assert "for 2 steps" in said


def test_views_are_not_listed_as_never_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.extraction.trace.VERIFIED", frozenset())

    def viewed(y: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("mine"):
            z = y.view(-1, 2, 2).transpose(0, 1).exp().detach_().unsqueeze_(0)
            return z.select(0, 0).movedim(0, 1).sum((1, 2))

    listed = extract(models.After(viewed), (8,), mode="infer").estimate(4).unsupported
    computed = ["aten.addmm.default", "aten.empty.memory_format", "aten.exp.default", "aten.sum.dim_IntList"]
    assert listed == computed


def test_free_memory_is_not_made_up() -> None:
    def by_free_memory(y: torch.Tensor) -> torch.Tensor:
        return y if torch.cuda.mem_get_info()[0] else y * 2

    with pytest.raises(ExtractionError, match="how much GPU memory is free"):
        _assumptions(models.After(by_free_memory))


def test_parameters_of_another_dtype_are_said() -> None:
    spec = extract(nn.Linear(8, 2).bfloat16(), ((8,), torch.bfloat16))
    said = spec.estimate(4).assumptions

    assert "parameters stay as the model has them: bfloat16" in said
