"""What cannot be meant is refused with a fact and a hint, before or while tracing; nothing is answered quietly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpumem.api import estimate, extract, max_batch
from gpumem.errors import (
    BudgetError,
    DataDependentError,
    DoesNotFitError,
    ExtractionError,
    GpumemError,
    InputError,
    UnknownNameError,
)
from gpumem.extraction import TensorSpec
from tests.extract import models


def _after(function: Callable[[torch.Tensor], Any]) -> nn.Module:
    return nn.Sequential(models.After(function))


def _ask(*, model: nn.Module | None = None, shape: Any = (8,), **keywords: Any) -> Any:
    return extract(models.mlp() if model is None else model, shape, **keywords)


ARGUMENTS: dict[str, tuple[type[GpumemError], str, dict[str, Any]]] = {
    "negative size": (InputError, "-8", {"shape": (-8,)}),
    "fraction in the shape": (InputError, "8.0", {"shape": (8.0,)}),
    "zero in the shape": (InputError, "dimension 0", {"shape": (0,)}),
    "negative TensorSpec": (InputError, "-8", {"shape": TensorSpec((-8,))}),
    "shape that is a number": (InputError, "describes no tensor", {"shape": 8}),
    "shape that is text": (InputError, "cannot read the input shape", {"shape": "3x224x224"}),
    "empty shape": (InputError, "describes no tensor", {"shape": ()}),
    "unknown input": (InputError, "input of Sequential is unknown", {"shape": None}),
    "no batches": (InputError, "batches", {"batches": ()}),
    "batch zero": (InputError, "positive integer, not 0", {"batches": (0,)}),
    "batch True": (InputError, "not True", {"batches": (True,)}),
    "unknown precision": (UnknownNameError, "bfloat16.*nearest: bf16", {"precision": "bfloat16"}),
    "unknown mode": (UnknownNameError, "nearest: infer", {"mode": "inference"}),
    "unknown zero_grad": (UnknownNameError, "known: none, zero", {"zero_grad": True}),
    "unknown optimizer": (UnknownNameError, "adamm.*nearest: adam", {"optimizer": "adamm"}),
    "unknown GPU": (UnknownNameError, "rtx3091.*nearest: rtx3090", {"gpu": "rtx3091"}),
    "optimizer instance": (InputError, "instance", {"optimizer": torch.optim.SGD(models.mlp().parameters())}),
    "optimizer arguments in text": (InputError, "optimizer's arguments 'high'", {"optimizer": "sgd:high"}),
    "sparse gradients": (
        InputError,
        "'0' .Embedding. has sparse gradients.*sparse=False",
        {"model": nn.Sequential(nn.Embedding(9, 4, sparse=True)), "shape": ((8,), torch.int64)},
    ),
    "sparse gradients of a function": (
        ExtractionError,
        "sparse gradients cannot be traced",
        {"model": models.SparseLookup(), "shape": ((8,), torch.int64)},
    ),
    "LBFGS": (InputError, "closure", {"optimizer": "lbfgs"}),
    "optimizer argument": (InputError, "SGD.*lrr", {"optimizer": ("sgd", {"lrr": 1})}),
    "optimizer None": (InputError, "NoneType", {"optimizer": None}),
    "function without optimizer": (InputError, "returned NoneType", {"optimizer": lambda params: None}),
    "accumulate 0": (InputError, "accumulate", {"accumulate": 0}),
    "accumulate True": (InputError, "accumulate", {"accumulate": True}),
    "accumulate 1.5": (InputError, "accumulate", {"accumulate": 1.5}),
    "clip negative": (InputError, "clip_grad_norm", {"clip_grad_norm": -1}),
    "step in backward, and accumulation": (
        InputError,
        "contradict",
        {"step_in_backward": True, "accumulate": 2},
    ),
    "step in backward, and clipping": (InputError, "clip", {"step_in_backward": True, "clip_grad_norm": 1.0}),
    "step in backward, and a scaler": (InputError, "Scaler", {"step_in_backward": True, "precision": "amp-fp16"}),
    "step in backward as text": (InputError, "True or False", {"step_in_backward": "yes"}),
    "clip NaN": (InputError, "clip_grad_norm", {"clip_grad_norm": float("nan")}),
    "criterion that is text": (InputError, "callable", {"criterion": "mse"}),
    "criterion returns None": (InputError, "returned NoneType", {"criterion": lambda o, t: None}),
    "criterion returns a vector": (InputError, r"shape \(2, 4\)", {"criterion": lambda o, t: o}),
    "criterion detaches": (InputError, "depends on no parameter", {"criterion": lambda o, t: o.detach().sum()}),
    "step without a step": (InputError, "never called", {"step": lambda m, o, b: m(b).sum().backward()}),
    "step in inference": (InputError, "mode is 'infer'", {"step": lambda m, o, b: None, "mode": "infer"}),
    "all frozen": (InputError, "requires_grad=False", {"model": models.mlp().requires_grad_(False)}),
    "float token ids": (ExtractionError, r"torch.float32.*int64", {"model": nn.Sequential(nn.Embedding(9, 4))}),
    "no parameters": (InputError, "no parameters", {"model": nn.ReLU()}),
    "lazy": (InputError, "'0' .LazyLinear. has no shape yet", {"model": nn.Sequential(nn.LazyLinear(4))}),
    "DataParallel": (InputError, "spreads a model", {"model": nn.DataParallel(models.mlp())}),
    "output None": (InputError, "returns NoneType", {"model": _after(lambda y: None)}),
    "output text": (InputError, "returns str", {"model": _after(lambda y: "text")}),
    "output of integers": (InputError, "torch.int64", {"model": _after(lambda y: y.argmax(1))}),
    "no module": (InputError, "not str", {"model": "resnet50"}),
    "a class": (InputError, "the class Linear", {"model": nn.Linear}),
    "lock in a dictionary": (ExtractionError, "Sequential.state cannot be copied", {"model": None}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_cannot_be_meant(name: str) -> None:
    error, text, keywords = ARGUMENTS[name]
    if name == "lock in a dictionary":
        model = models.uncopyable()
        model.state = {"lock": model.lock}  # type: ignore[assignment]
        keywords = {"model": model}
    with pytest.raises(error, match=f"(?s){text}") as caught:
        _ask(**keywords)
    assert type(caught.value) is error


def test_script_modules_have_nothing_to_trace() -> None:
    scripted = torch.jit.trace(models.mlp(), torch.randn(2, 8))
    with pytest.raises(InputError, match="TorchScript"):
        _ask(model=nn.Sequential(scripted))


# ---------------------------------------------------------------------- the model's own errors

WRONG: dict[str, tuple[nn.Module, Any]] = {
    "channels": (nn.Conv2d(3, 8, 3), (1, 16, 16)),
    "transposed channels": (nn.ConvTranspose2d(3, 8, 3), (4, 8, 8)),
    "grouped channels": (nn.Conv2d(4, 8, 3, groups=2), (6, 8, 8)),
    "kernel larger than the image": (nn.Conv2d(3, 8, 7), (3, 4, 4)),
    "convolution dtype": (nn.Conv2d(3, 8, 3).double(), (3, 8, 8)),
    "features": (nn.Linear(8, 4), (7,)),
    "linear dtype": (nn.Linear(8, 4).double(), (8,)),
    "batch norm": (nn.BatchNorm2d(8), (4, 8, 8)),
    "batch norm 1d": (nn.BatchNorm1d(8), (4,)),
    "layer norm": (nn.LayerNorm(8), (4,)),
    "group norm": (nn.GroupNorm(2, 8), (4, 8, 8)),
    "LSTM": (nn.LSTM(8, 8), (3, 7)),
    "attention": (nn.MultiheadAttention(8, 2), ((3, 8), (3, 8), (4, 8))),
    "pooling": (nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(9)), (3, 4, 4)),
    "argument name": (models.mlp(), {"x": (8,)}),
    "too many inputs": (models.mlp(), ((8,), (8,))),
    "broadcast": (models.After(lambda y: y + torch.zeros(3, device=y.device)), (8,)),
    "product": (models.After(lambda y: y @ y), (8,)),
    "view": (models.After(lambda y: y.view(-1, 3)), (8,)),
    "softmax dimension": (models.After(lambda y: functional.softmax(y, 4)), (8,)),
}


def _first_float(output: Any, target: Any) -> torch.Tensor:
    tensor = output[0] if isinstance(output, tuple) else output
    return tensor.float().sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_fails_as_it_does_in_pytorch(name: str) -> None:
    model, shape = WRONG[name]
    with pytest.raises(ExtractionError, match=r"failed in (its|the) forward pass") as caught:
        extract(model, shape, criterion=_first_float)
    assert caught.value.__cause__ is not None
    assert str(caught.value.__cause__) in caught.value.message
    assert "the exception is the model's own" in caught.value.hint


def test_the_failing_module_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(7, 4)))
    with pytest.raises(ExtractionError, match=r"failed in the forward pass of '1\.1'"):
        _ask(model=model)


@pytest.mark.parametrize(
    ("place", "keywords"),
    [
        ("in the criterion", {"criterion": nn.CTCLoss()}),
        ("in the optimizer's step", {"optimizer": "sparseadam"}),
        ("in your step function", {"step": lambda model, optimizer: None}),
        ("when its optimizer was made", {"optimizer": lambda params: 1 / 0}),
    ],
)
def test_the_failing_phase_is_named(place: str, keywords: dict[str, Any]) -> None:
    with pytest.raises(ExtractionError, match=place):
        _ask(**keywords)


class _PlainList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.rest = [nn.Linear(8, 8), nn.Linear(8, 4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.rest:
            x = layer(x)
        return x


ON_HOST: dict[str, nn.Module] = {
    "modules in a plain list": _PlainList(),
    "added": models.After(lambda y: y + torch.ones(4)),
    "multiplied": models.After(lambda y: y * torch.ones(4)),
    "in place": models.After(lambda y: y.mul_(torch.ones(y.shape))),
    "matrix": models.After(lambda y: functional.linear(y, torch.zeros(4, 4))),
    "weight": models.After(lambda y: functional.conv1d(y[:, None], torch.zeros(2, 1, 3))),
    "normalised": models.After(lambda y: functional.layer_norm(y, (4,), torch.ones(4))),
    "chosen": models.After(lambda y: torch.where(torch.ones(4) > 0, y, y)),
}


@pytest.mark.parametrize("name", ON_HOST)
def test_host_tensors_do_not_meet_the_device(name: str) -> None:
    with pytest.raises(ExtractionError) as caught:
        _ask(model=ON_HOST[name], criterion=_first_float)
    assert "stays on the host" in caught.value.hint


# ---------------------------------------------------------------------- values that a trace has not

NEEDS_VALUES: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda y: y * y.sum().item(),
    "branch": lambda y: y if y.sum() > 0 else 2 * y,
    "nonzero": lambda y: y[y.abs().sum(1).nonzero().squeeze(1)],
    "mask": lambda y: y[y > 0].sum(),
    "masked_select": lambda y: y.masked_select(y > 0).sum(),
    "cpu": lambda y: y * y.cpu().sum(),
    "tolist": lambda y: y * y.tolist()[0][0],
    "numpy": lambda y: y * float(y.detach().cpu().numpy().sum()),
    "unique": lambda y: y.unique().sum(),
    "bincount": lambda y: y.sum() + y.argmax(1).bincount().sum(),
    "repeat_interleave": lambda y: y.repeat_interleave(torch.ones(len(y), dtype=torch.int64, device=y.device), 0),
}


@pytest.mark.parametrize("name", NEEDS_VALUES)
def test_a_model_that_needs_values_is_told_where(name: str) -> None:
    with pytest.raises(DataDependentError) as caught:
        _ask(model=_after(NEEDS_VALUES[name]), criterion=_first_float)
    assert caught.value.module_path == "0"
    assert caught.value.op.startswith("aten::")
    assert "'0'" in caught.value.message
    assert caught.value.hint


# ---------------------------------------------------------------------- batches and budgets


@pytest.mark.parametrize("batch", [0, -1, True, 1.5, "4", None, 2**70])
def test_batches_that_are_none(batch: Any) -> None:
    with pytest.raises(InputError, match="positive integer"):
        estimate(models.mlp(), (8,), batch=batch)


@pytest.mark.parametrize(
    "budget",
    ["24 gigs", "24", "nan GB", "-3GB", "1e99GB", "9" * 25 + "GB", -1, 0, 2**70, True, [1], float("nan"), float("inf")],
)
def test_budgets_that_are_none(budget: Any) -> None:
    with pytest.raises(BudgetError) as caught:
        max_batch(models.mlp(), (8,), budget=budget)
    assert caught.value.hint


def test_a_budget_below_the_context() -> None:
    with pytest.raises(BudgetError, match="context"):
        max_batch(models.mlp(), (8,), budget="20MB")


def test_a_budget_below_the_weights() -> None:
    model = nn.Linear(8192, 8192)
    weights = sum(p.nbytes for p in model.parameters())
    with pytest.raises(DoesNotFitError) as caught:
        max_batch(model, (8192,), budget=weights // 2, context="1MB")
    assert caught.value.budget_bytes == weights // 2
    assert caught.value.smallest_bytes > weights


def test_a_largest_batch_needs_a_limit() -> None:
    with pytest.raises(BudgetError, match="GPU or a budget"):
        max_batch(models.mlp(), (8,))
