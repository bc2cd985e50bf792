"""Kinds of modules that extraction takes as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn

from gpumem.api import extract
from gpumem.extraction import TensorSpec
from tests.extract import models


def _parametrized(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(wrap(nn.Linear(8, 4)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "old weight_norm": _parametrized(nn.utils.weight_norm),
    "old weight_norm after a step": models.used_weight_norm,
    "old spectral_norm": _parametrized(nn.utils.spectral_norm),
    "weight_norm": _parametrized(nn.utils.parametrizations.weight_norm),
    "spectral_norm": _parametrized(nn.utils.parametrizations.spectral_norm),
    "ParameterList and ParameterDict": models.Lists,
    "shared buffers": models.shared_buffers,
    "autograd.Function": models.custom_function,
    "reentrant checkpoint": lambda: models.Checkpointed(reentrant=True),
    "checkpoint": lambda: models.Checkpointed(reentrant=False),
    "uncopyable attributes": models.uncopyable,
    "remembered outputs": models.used_memory,
    "torch.cuda in forward": models.CudaCaller,
    "nested output": lambda: models.After(lambda y: {"a": [(y, {"b": 2 * y})], "nothing": None}),
}


def _requested(spec: Any, batch: int = 64) -> int:
    return spec.estimate(batch).requested_peak.likely  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_traced_with_its_own_weights(name: str, precision: str) -> None:
    model = MODELS[name]()
    report = extract(model, (8,), precision=precision).estimate(64)
    weights = sum(p.numel() * p.element_size() for p in {id(p): p for p in model.parameters()}.values())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    assert weights <= report.breakdown["param"] + report.breakdown.get("buffer", 0) <= weights + 2 * buffers


def test_tied_weights_count_once() -> None:
    model = models.Tied()
    report = extract(model, TensorSpec((5,), torch.int64)).estimate(64)
    assert report.breakdown["param"] == model.embedding.weight.nbytes


def test_parameters_on_meta_are_the_same_model() -> None:
    with torch.device("meta"):
        on_meta = models.mlp()
    assert extract(on_meta, (8,)) == extract(models.mlp(), (8,))


def test_checkpointing_frees_activations() -> None:
    with_it = extract(models.Checkpointed(reentrant=False), (8,)).estimate(4096).breakdown["activation"]
    model = models.Checkpointed(reentrant=False)
    model.forward = lambda x: model.last(model.block(model.first(x)))  # type: ignore[method-assign]
    plain = nn.Sequential(model.first, model.block, model.last)
    assert with_it < extract(plain, (8,)).estimate(4096).breakdown["activation"]


def test_a_frozen_part_has_no_gradient() -> None:
    wide = nn.Linear(1024, 4096)
    model = nn.Sequential(nn.Linear(8, 1024), wide, nn.Linear(4096, 4))
    whole = _requested(extract(model, (8,)), 2)
    model[:2].requires_grad_(False)
    assert whole - _requested(extract(model, (8,)), 2) >= wide.weight.nbytes


def test_compiled_modules_are_traced_uncompiled() -> None:
    model = models.mlp()
    compiled: Any = torch.compile(model)
    spec = extract(compiled, (8,))
    assert _requested(spec) == _requested(extract(model, (8,)))
    assert "torch.compile" in spec.about_json()


@pytest.mark.parametrize(
    "compiled",
    [
        lambda: nn.Sequential(cast("nn.Module", torch.compile(nn.Linear(8, 8))), nn.ReLU(), nn.Linear(8, 4)),
        lambda: _compiled_in_place(models.mlp()),
        lambda: nn.Sequential(nn.Linear(8, 8), models.After(torch.compile(torch.relu))),
    ],
    ids=["submodule", "module.compile()", "function"],
)
def test_compiled_parts_run_uncompiled(compiled: Callable[[], nn.Module]) -> None:
    assert _requested(extract(compiled(), (8,))) > 0


def _compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def test_inference_needs_no_parameters() -> None:
    assert _requested(extract(nn.ReLU(), (8,), mode="infer"), 64) == 3 * 64 * 8 * 4


def test_a_users_step_is_traced_as_it_is() -> None:
    model = models.mlp()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        inputs, target = batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), target).backward()
        optimizer.step()

    own = extract(model, (8,), step=step, target=TensorSpec((), torch.int64))
    # Here the batch is made before zero_grad too, and the output dies before the backward pass.
    assert abs(_requested(own) - _requested(extract(model, (8,)))) <= 64 * 4 * 4
