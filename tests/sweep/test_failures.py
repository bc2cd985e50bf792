"""What cannot be answered is a row with its error; what cannot be meant is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import gpumem
from gpumem.errors import BudgetError, GpumemError, InputError, UnknownNameError
from tests.sweep import models

GRID = {"batch": [8, 16], "gpu": "t4"}


def test_an_architecture_that_fails_is_a_row(tmp_path: Any) -> None:
    given = [models.reads, models.tower, models.broken, "torchvision:no_such_model", "no_such_module:factory"]
    table = gpumem.sweep(given, GRID, cache=tmp_path)
    errors = {row["model"]: row["error"] for row in table}
    assert errors["tower"] is None
    assert ".item()" in errors["reads"]
    assert "ValueError: no such width" in errors["broken"]
    assert "no model" in errors["torchvision:no_such_model"]
    assert "no_such_module" in errors["no_such_module:factory"]
    failed = table.filter(model="reads")
    assert failed["fits"].tolist() == failed["device_bytes_high"].tolist() == [None, None]
    assert "No answer" in str(table)
    assert len(table.filter(error=None)) == 2
    # What failed is tried again the next time.
    assert len(list(tmp_path.rglob("*.gz"))) == 1


def test_a_budget_below_the_context_is_a_row() -> None:
    model, input = models.tower()
    spec = gpumem.extract(model, input)
    table = gpumem.sweep(spec, {"batch": 8, "budget": ["100MB", "2GB"]})
    assert [row["fits"] for row in table] == [None, True]
    assert "context" in table[0]["error"]


@pytest.mark.parametrize(
    ("grid", "error", "said"),
    [
        ({}, InputError, "no batch"),
        ({"batch": []}, InputError, "no values"),
        ({"batch": 0}, InputError, "positive integer, not 0"),
        ({"batch": [8, -1]}, InputError, "positive integer, not -1"),
        ({"batch": [8, True]}, InputError, "not True"),
        ({"batch": 2.5}, InputError, "not 2.5"),
        ({"batch": [8, 8]}, InputError, "8 twice"),
        ({"batch": 8, "gpus": "t4"}, UnknownNameError, "nearest: gpu"),
        ({"batch_size": 8}, UnknownNameError, "nearest: batch"),
        ({"batch": 8, "memory_format": "channels_last"}, UnknownNameError, "nearest: channels_last"),
        ({"batch": 8, "gpu": "t5"}, UnknownNameError, "nearest"),
        ({"batch": 8, "budget": "24"}, BudgetError, "no unit"),
        ({"batch": 8, "precision": "fp31"}, UnknownNameError, "nearest: fp32"),
        ({"batch": 8, "optimizer": ["sgd", "adamv"]}, UnknownNameError, "nearest"),
        ({"batch": 8, "input": [(3, 0, 3)]}, InputError, "dimension 0"),
        ({"batch": 8, "checkpoint": "every"}, UnknownNameError, "known: none, all, plan"),
        ({"batch": 8, "checkpoint": "plan"}, InputError, "within a limit"),
        ({"batch": 8, "mode": "infer", "checkpoint": "all"}, InputError, "for training"),
        ({"batch": 8, "mode": ["train", "infer"], "checkpoint": "all"}, InputError, "for training"),
        ({"batch": range(1, 1_000_000_001)}, InputError, "1,000,000,000"),
        (
            {"batch": range(1, 100_001), "budget": [f"{gb}GB" for gb in range(1, 10_001)]},
            InputError,
            "1,000,000,000 rows",
        ),
        ([8], InputError, "mapping"),
    ],
)
def test_grids_that_cannot_be_meant(grid: Any, error: type[GpumemError], said: str) -> None:
    with pytest.raises(error, match=said):
        gpumem.sweep(models.tower, grid, cache=None)


def _within() -> Any:
    return lambda: nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no model"),
        ({}, "no model"),
        ([models.tower, models.tower], "two models are named 'tower'"),
        (nn.Linear(2, 2), "function that makes it"),
        ([3], "no model"),
        (_within(), "cannot be pickled"),
        ({1: models.tower}, "is a text"),
    ],
)
def test_models_that_cannot_be_meant(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        gpumem.sweep(given, GRID, cache=None)


def test_a_spec_has_its_loop() -> None:
    model, input = models.tower()
    spec = gpumem.extract(model, input)
    for axis in ({"precision": "bf16"}, {"checkpoint": "all"}):
        with pytest.raises(InputError, match="traced already"):
            gpumem.sweep(spec, {**GRID, **axis})


@pytest.mark.parametrize(
    "keywords", [{"executor": 3}, {"threads": 0}, {"threads": True}, {"progress": 3}, {"cache": 3}, {"cache": __file__}]
)
def test_keywords_that_cannot_be_meant(keywords: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        gpumem.sweep(models.tower, GRID, **keywords)
