"""Specs of a few loops, extracted once: the properties are about what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gpumem import ModelSpec
from gpumem.api import extract
from gpumem.extraction import TensorSpec
from tests.extract import models


def _convolutional(**keywords: Any) -> ModelSpec:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8192, 10),
    )
    return extract(model, (3, 32, 32), **keywords)


def _attention(**keywords: Any) -> ModelSpec:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return extract(nn.Sequential(layer, nn.Flatten(), nn.Linear(64 * 16, 5)), (16, 64), **keywords)


SPECS: dict[str, Callable[[], ModelSpec]] = {
    "convolutional": _convolutional,
    "convolutional amp": lambda: _convolutional(precision="amp-fp16", optimizer="adamw", channels_last=True),
    "attention": lambda: _attention(optimizer="adamw", clip_grad_norm=1.0),
    "inference": lambda: _attention(mode="infer", precision="bf16"),
    "quadratic": lambda: extract(models.Contrastive(), (8,)),
    "tokens": lambda: extract(models.Tied(), TensorSpec((64,), torch.int64), optimizer=("sgd", {"momentum": 0.9})),
}
_extracted: dict[str, ModelSpec] = {}


@pytest.fixture(params=sorted(SPECS))
def spec(request: pytest.FixtureRequest) -> ModelSpec:
    """One of the specs."""
    name = request.param
    if name not in _extracted:
        _extracted[name] = SPECS[name]()
    return _extracted[name]
