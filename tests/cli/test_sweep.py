"""`gpumem sweep` and `gpumem plan --front` as commands."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path

import pytest

import gpumem
from gpumem.cli import EXIT_DOES_NOT_FIT, EXIT_ERROR, EXIT_FITS, main
from gpumem.cli.sweep import _numbers
from gpumem.errors import InputError

TOWER, READS = "tests.sweep.models:tower", "tests.sweep.models:reads"


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_table_as_text_json_and_csv(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    grid = ("--batch", "8,16-32/16", "--gpu", "t4,l4", "--cache", str(tmp_path / "cache"))
    code, out, _ = _run(capsys, "sweep", TOWER, READS, *grid, "--csv", str(tmp_path / "table.csv"))
    assert code == EXIT_FITS
    assert out.startswith("12 rows: 6 fit, 0 do not, 6 have no answer")
    assert "No answer" in out
    code, out, _ = _run(capsys, "sweep", TOWER, READS, *grid, "--json")
    columns = json.loads(out)["columns"]
    assert columns["batch"] == [8, 8, 16, 16, 32, 32] * 2
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["batch"]) for row in rows] == columns["batch"]
    assert [row["device_bytes_high"] for row in rows] == [str(n or "") for n in columns["device_bytes_high"]]


def test_best_and_nothing_that_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cache = ("--cache", str(tmp_path))
    code, out, _ = _run(capsys, "sweep", TOWER, "--batch", "8-512/8", "--budget", "1GB", "--best", "--json", *cache)
    model, input = __import__("tests.sweep.models", fromlist=["tower"]).tower()
    largest = gpumem.max_batch(model, input, budget="1GB")
    assert code == EXIT_FITS
    assert json.loads(out)["columns"]["batch"] == [min(512, largest // 8 * 8)]
    code, out, _ = _run(capsys, "sweep", TOWER, "--batch", "4096", "--budget", "1GB", *cache)
    assert code == EXIT_DOES_NOT_FIT
    assert "0 fit, 1 do not" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--batch", "0"), "positive integer"),
        (("--batch", "eight"), "no number and no range"),
        (("--batch", "9-8"), "empty range"),
        (("--batch", "1-9999999999"), "more than a million"),
        (("--batch", "8", "--gpu", "t4,t5"), "unknown GPU"),
        (("--batch", "8", "--checkpoint", "every"), "unknown checkpoint"),
        (("--batch", "8", "--no-cache", "--cache", "x"), "contradict"),
    ],
)
def test_arguments_that_cannot_be_meant(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = _run(capsys, "sweep", TOWER, *arguments)
    assert (code, out) == (EXIT_ERROR, "")
    assert said in err


def test_numbers() -> None:
    assert _numbers("1, 8-24/8,5-6", "batch") == [1, 8, 16, 24, 5, 6]
    with pytest.raises(InputError, match="empty range"):
        _numbers("8-16/0", "batch")


def test_parquet_without_pyarrow(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "t.parquet"
    code, _, err = _run(capsys, "sweep", TOWER, "--batch", "8", "--no-cache", "--arrow", str(file))
    assert code == EXIT_ERROR
    assert "pip install pyarrow" in err
    assert not file.exists()


def test_parquet_has_the_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    code, out, _ = _run(capsys, "sweep", TOWER, "--batch", "8,16", "--no-cache", "--arrow", str(file), "--json")
    assert code == EXIT_FITS
    read = importlib.import_module("pyarrow.parquet").read_table(file).to_pydict()
    columns = json.loads(out)["columns"]
    assert read["batch"] == columns["batch"] == [8, 16]
    assert read["device_bytes_high"] == columns["device_bytes_high"]


def test_the_front_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "plan", TOWER, "--batch", "512", "--front")
    assert code == EXIT_FITS
    assert "none better in both" in out
    code, out, _ = _run(capsys, "plan", TOWER, "--batch", "512", "--gpu", "t4", "--front", "--json")
    points = json.loads(out)["front"]["points"]
    sizes = [point["device_bytes"] for point in points]
    assert sizes == sorted(sizes)
    assert points[-1]["regions"] == {}
    code, _, err = _run(capsys, "plan", TOWER, "--batch", "512", "--front", "--budget", "2GB")
    assert code == EXIT_ERROR
    assert "--front is for every budget" in err
