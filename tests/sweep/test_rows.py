"""Rows are what `ModelSpec.estimate` answers, in the order of the axes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import gpumem
from tests.sweep import models

CARDS = ["t4", "rtx3090", "a100-80gb", "h100"]
BATCHES = [1, 7, 64, 4096, 30_000]
FACTORIES = [models.convolutions, models.tower, models.attends]


def _trace(factory: Any, **loop: Any) -> gpumem.ModelSpec:
    model, input = factory()
    return gpumem.extract(model, input, **loop)


@pytest.fixture(scope="module")
def table() -> gpumem.Sweep:
    grid = {"batch": BATCHES, "gpu": CARDS, "budget": [None, "3GB"], "precision": ["fp32", "amp-bf16"]}
    return gpumem.sweep(FACTORIES, grid, cache=None)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_every_row_is_what_estimate_answers(table: gpumem.Sweep, factory: Any, precision: str) -> None:
    rows = table.filter(model=factory.__name__, precision=precision)
    assert len(rows) == len(BATCHES) * len(CARDS) * 2
    fitting = set()
    for gpu in CARDS:
        spec = _trace(factory, precision=precision, gpu=gpu)
        for row in rows.filter(gpu=gpu):
            report = spec.estimate(row["batch"], gpu=gpu, budget=row["budget"], conv_workspaces="rules")
            for peak in ("requested", "allocated", "reserved", "device"):
                quantity = getattr(report, f"{peak}_peak")
                found = [row[f"{peak}_bytes_{end}"] for end in ("low", "likely", "high")]
                assert found == [quantity.low, quantity.likely, quantity.high], (row, peak)
            assert row["fits"] == report.fits
            assert row["error"] is None
            fitting.add(report.fits)
    assert fitting == {True, False}


def test_rows_count_the_axes_in_order(table: gpumem.Sweep) -> None:
    assert list(table.axes) == ["model", "precision", "batch", "gpu", "budget"]
    combinations = list(itertools.product(*table.axes.values()))
    assert [tuple(row[name] for name in table.axes) for row in table] == combinations
    assert table[-1] == list(table)[-1]


def test_with_the_upper_end_alone_the_same_fits() -> None:
    spec = _trace(models.convolutions)
    grid = {"batch": [64, 512, 8192], "gpu": CARDS, "budget": ["2GB", "3GB", None]}
    full, upper = (gpumem.sweep(spec, grid, upper_only=only) for only in (False, True))
    assert full["fits"].tolist() == upper["fits"].tolist()
    assert [name for name in upper.columns if "bytes" in name] == [
        f"{peak}_bytes_high" for peak in ("requested", "allocated", "reserved", "device")
    ]
    assert np.all(upper["device_bytes_high"] <= full["device_bytes_high"])
    assert np.all(upper["requested_bytes_high"] == full["requested_bytes_high"])


@pytest.mark.parametrize(
    "conf", ["garbage_collection_threshold:0.6", "expandable_segments:True", "max_split_size_mb:32"]
)
def test_settings_of_the_allocator_that_watch_the_limit(conf: str) -> None:
    spec = _trace(models.tower)
    table = gpumem.sweep(spec, {"batch": [64, 512, 2000], "budget": ["1GB", "2GB", "900MB"], "alloc_conf": conf})
    for row in table:
        report = spec.estimate(row["batch"], budget=row["budget"], alloc_conf=conf)
        assert row["reserved_bytes_likely"] == report.reserved_peak.likely
        assert row["fits"] == report.fits


def test_the_answer_does_not_depend_on_threads() -> None:
    spec = _trace(models.convolutions)
    grid = {"batch": range(1, 40), "gpu": ["t4", "a100-80gb"]}
    tables = [gpumem.sweep(spec, grid, threads=threads).to_json() for threads in (1, 2, 7)]
    assert tables[0] == tables[1] == tables[2]


def test_a_model_that_changes_with_the_batch_is_traced_at_each() -> None:
    table = gpumem.sweep(models.branches, {"batch": [8, 9], "budget": "2GB"}, cache=None)
    for row in table:
        model, input = models.branches()
        report = gpumem.estimate(model, input, batch=row["batch"], budget="2GB")
        assert (row["requested_bytes_likely"], row["fits"]) == (report.requested_peak.likely, report.fits)


def test_checkpoints_all_and_planned() -> None:
    grid = {"batch": [64, 512], "budget": ["1GB", "900MB", "3GB"], "checkpoint": ["none", "all", "plan"]}
    table = gpumem.sweep(models.tower, grid, cache=None)
    model, input = models.tower()
    fits = {(row["checkpoint"], row["batch"], row["budget"]): row["fits"] for row in table}
    for (batch, budget), row in (((r["batch"], r["budget"]), r) for r in table.filter(checkpoint="plan")):
        assert row["fits"] >= max(fits["none", batch, budget], fits["all", batch, budget])
        if not row["fits"]:
            with pytest.raises(gpumem.errors.DoesNotFitError) as raised:
                gpumem.plan(model, input, batch=batch, budget=budget)
            assert row["device_bytes_high"] == raised.value.smallest_bytes
            continue
        plan = gpumem.plan(model, input, batch=batch, budget=budget)
        assert row["recompute_seconds"] == pytest.approx(plan.recompute_seconds)
        assert row["step_seconds"] == pytest.approx(plan.step_seconds)
        assert row["checkpointed"] == len(plan.regions)
    assert set(table.filter(checkpoint="all")["checkpointed"].tolist()) == {4}
    assert table.filter(checkpoint="none")["recompute_seconds"].tolist() == [None] * 6
