"""A criterion without a target gets the one that it takes, and the report says which."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpumem.api import extract
from tests.extract import models

FLOATS, INDEX = ((4,), torch.float32), ((), torch.int64)
CRITERIA: dict[str, tuple[Any, Any]] = {
    "MSELoss": (nn.MSELoss(), FLOATS),
    "SmoothL1Loss": (nn.SmoothL1Loss(), FLOATS),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), FLOATS),
    "mse_loss": (functional.mse_loss, FLOATS),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(), INDEX),
    "MultiMarginLoss": (nn.MultiMarginLoss(), INDEX),
    "function of class indices": (lambda output, target: functional.cross_entropy(output, target), INDEX),
    "function of floats": (lambda output, target: functional.mse_loss(output, target), FLOATS),
    "function without a target": (lambda output, target: output.sum(), INDEX),
}


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_the_target_is_the_one_that_the_criterion_takes(name: str, precision: str) -> None:
    criterion, target = CRITERIA[name]
    # A batch as large as the classes: an index would be broadcast over them.
    chosen = extract(models.mlp(), (8,), criterion=criterion, batches=(4,), precision=precision)
    given = extract(models.mlp(), (8,), criterion=criterion, target=target, batches=(4,), precision=precision)
    assert chosen.timeline(4) == given.timeline(4)
    said = [line for line in chosen.estimate(4).assumptions if line.startswith("target of the criterion")]
    assert len(said) == 1
    assert ("float32[b, 4]" if target is FLOATS else "int64[b]") in said[0]
    assert not [line for line in given.estimate(4).assumptions if line.startswith("target of the criterion")]


def test_pixels_get_a_map_of_class_indices() -> None:
    spec = extract(nn.Conv2d(3, 5, 1), (3, 8, 6), criterion=nn.CrossEntropyLoss())
    assert "int64[b, 8, 6]" in "".join(spec.estimate(4).assumptions)


def test_a_target_of_a_16_bit_model_is_of_its_type() -> None:
    spec = extract(models.mlp(), (8,), criterion=nn.MSELoss(), precision="bf16")
    assert "bfloat16[b, 4]" in "".join(spec.estimate(4).assumptions)
