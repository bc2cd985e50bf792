"""The table by itself: columns, rows, filters, orders and forms."""

from __future__ import annotations

import csv
import importlib
import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpumem
from gpumem.errors import GpumemError, InputError, UnknownNameError
from tests.sweep import models

BATCHES = [64, 8, 512, 4096]


@pytest.fixture(scope="module")
def table() -> gpumem.Sweep:
    specs = {name: gpumem.extract(*models.tower(blocks)) for name, blocks in (("small", 2), ("large", 6))}
    return gpumem.sweep(specs, {"batch": BATCHES, "gpu": ["t4", None], "budget": ["1GB", None, "100MB"]})


def test_columns_and_rows_agree(table: gpumem.Sweep) -> None:
    assert len(table) == 2 * 4 * 2 * 3
    rows = list(table)
    for name in table.columns:
        assert [row[name] for row in rows] == table[name].tolist()
    assert table[3] == rows[3]
    assert table[-1] == rows[-1]
    with pytest.raises(IndexError):
        table[len(table)]
    with pytest.raises(UnknownNameError, match="device_bytes_high"):
        table["device_byte_high"]


def test_what_is_not_answered_is_masked(table: gpumem.Sweep) -> None:
    below = table.filter(budget="100MB")
    assert below["fits"].mask.all()
    assert below["device_bytes_high"].mask.all()
    assert all("context" in error for error in below["error"])
    free = table.filter(budget=None, gpu=None)
    assert free["fits"].mask.all()
    assert not free["device_bytes_high"].mask.any()
    # Nothing that has no answer is taken for small.
    assert not len(below.filter(below["device_bytes_high"] < 1 << 60))


def test_filter(table: gpumem.Sweep) -> None:
    assert set(table.filter(model="small")["model"]) == {"small"}
    assert set(table.filter(batch=[8, 64])["batch"].tolist()) == {8, 64}
    assert len(table.filter(table["batch"] > 100, model="small")) == 12
    assert len(table.filter(batch=9)) == 0
    assert str(table.filter(batch=9)).startswith("0 rows")
    assert all(table.filter(fits=True)["fits"])
    for mask in ([True], table["batch"], np.ones((len(table), 1), bool)):
        with pytest.raises(InputError):
            table.filter(mask)
    with pytest.raises(UnknownNameError):
        table.filter(cards="t4")


def test_sort_keeps_equal_rows_in_order(table: gpumem.Sweep) -> None:
    rows = list(table)
    for descending in (False, True):
        ordered = list(table.sort("batch", descending=descending))
        assert ordered == sorted(rows, key=lambda row: -row["batch"] if descending else row["batch"])
    by_bytes = table.sort("device_bytes_high")["device_bytes_high"]
    known = by_bytes.compressed()
    assert np.all(np.diff(known.astype(np.int64)) >= 0)
    assert by_bytes.mask[len(known) :].all()


def test_best_is_the_largest_that_fits(table: gpumem.Sweep) -> None:
    best = table.best("batch", per=("model", "gpu", "budget"))
    groups: dict[Any, int] = {}
    for row in table:
        if row["fits"]:
            key = (row["model"], row["gpu"], row["budget"])
            groups[key] = max(groups.get(key, 0), row["batch"])
    assert {(row["model"], row["gpu"], row["budget"]): row["batch"] for row in best} == groups
    assert len(best) == len(groups)
    least = table.best("device_bytes_high", per=(), smallest=True)
    assert least["device_bytes_high"].tolist() == [table.filter(fits=True)["device_bytes_high"].min()]
    with pytest.raises(UnknownNameError):
        table.best(per="card")


def test_forms(table: gpumem.Sweep, tmp_path: Path) -> None:
    columns = json.loads(table.to_json())["columns"]
    assert columns["batch"] == table["batch"].tolist()
    assert columns["fits"] == table["fits"].tolist()
    text = table.to_csv()
    assert table.to_csv(tmp_path / "table.csv") is None
    assert (tmp_path / "table.csv").read_text() == text
    rows = list(csv.DictReader(io.StringIO(text or "")))
    assert [row["reserved_bytes_high"] for row in rows] == [str(n or "") for n in columns["reserved_bytes_high"]]
    copy = pickle.loads(pickle.dumps(table.filter(fits=True)))
    assert copy.to_json() == table.filter(fits=True).to_json()
    assert "48 rows" in repr(table)


@pytest.mark.parametrize(("library", "form"), [("pandas", "to_pandas"), ("pyarrow", "to_arrow")])
def test_forms_of_libraries_that_are_not_there(
    table: gpumem.Sweep, library: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(GpumemError, match=f"pip install {library}"):
        getattr(table, form)()


def test_pandas_and_arrow_have_the_same_rows(table: gpumem.Sweep) -> None:
    frame = table.to_pandas()
    assert frame["batch"].tolist() == table["batch"].tolist()
    assert frame["device_bytes_high"].isna().tolist() == table["device_bytes_high"].mask.tolist()
    assert isinstance(frame["model"].dtype, importlib.import_module("pandas").CategoricalDtype)
    assert table.to_arrow().to_pylist() == [
        {name: value if name == "batch" or not isinstance(value, tuple) else str(value) for name, value in row.items()}
        for row in ({**row, "gpu": str(row["gpu"]), "budget": str(row["budget"])} for row in table)
    ]
