"""Batches that trained on a real RTX 3090 are predicted to fit, and the next larger ones, which failed, are not.

All 576 rows: `python -m benchmarks.truth_brackets run`, result in benchmarks/results/truth_brackets.md.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from benchmarks.truth.rows import Row, read_rows

from gpumem import ModelSpec

timm = pytest.importorskip("timm", reason="the recorded brackets are of timm models: TRUTH NOT CHECKED")

from benchmarks.truth import timm_benchmark  # noqa: E402

ROWS = read_rows(Path(__file__).parents[1] / "data" / "truth" / "timm_train_brackets.csv")


@functools.cache
def _spec(index: int) -> ModelSpec:
    return timm_benchmark.trace(ROWS[index])


def _name(row: Row) -> str:
    return f"{row['model']}-{row['layout']}"


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[_name(row) for row in ROWS])
def test_the_recorded_batch_fits_and_the_next_does_not(index: int) -> None:
    spec, row = _spec(index), ROWS[index]
    fits = [
        spec.fits(int(row[column]), gpu=timm_benchmark.GPU, stack=timm_benchmark.STACK)
        for column in ("batch_fits", "batch_oom")
    ]
    assert fits == [True, False]


def test_half_the_card_does_not_hold_the_recorded_batch() -> None:
    # The rows above can fail: with half the memory the largest batch falls under every recorded one.
    for index, row in enumerate(ROWS):
        assert not _spec(index).fits(int(row["batch_fits"]), budget="11GiB", stack=timm_benchmark.STACK), _name(row)
