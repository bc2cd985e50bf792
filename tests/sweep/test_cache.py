"""Traces are found again by content, and a cache never makes a sweep wrong or fail."""

from __future__ import annotations

import functools
import gzip
import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gpumem
from gpumem.sweeping import execute
from gpumem.sweeping.cache import Cache, default_folder
from gpumem.sweeping.job import Job, Traced, run
from tests.sweep import models

GRID = {"batch": [8, 16], "gpu": ["t4", "l4"]}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Jobs that were run, and not found."""
    seen: list[Job] = []

    def counted(job: Job) -> Traced:
        seen.append(job)
        return run(job)

    monkeypatch.setattr(execute, "run", counted)
    return seen


def test_a_second_sweep_traces_nothing(tmp_path: Path, runs: list[Job]) -> None:
    first = gpumem.sweep(models.tower, {**GRID, "precision": ["fp32", "bf16"]}, cache=tmp_path)
    assert len(runs) == 2
    second = gpumem.sweep(models.tower, {**GRID, "precision": ["fp32", "bf16"], "batch": [8, 16]}, cache=tmp_path)
    assert len(runs) == 2
    assert first.to_json() == second.to_json()
    gpumem.sweep(models.tower, {"batch": [3, 5], "budget": "2GB", "precision": "bf16", "gpu": "t4"}, cache=tmp_path)
    assert len(runs) == 2
    gpumem.sweep(models.tower, {**GRID, "optimizer": "adamw"}, cache=tmp_path)
    assert len(runs) == 3
    gpumem.sweep(functools.partial(models.tower, 5), GRID, cache=tmp_path)
    assert len(runs) == 4


def test_damaged_entries_are_replaced(tmp_path: Path, runs: list[Job]) -> None:
    good = gpumem.sweep(models.tower, GRID, cache=tmp_path)
    (entry,) = tmp_path.rglob("*.gz")
    whole = entry.read_bytes()
    damaged = [b"", b"nonsense", whole[: len(whole) // 2], gzip.compress(b"{}\n{}"), gzip.compress(b"\xff\xfe")]
    for count, content in enumerate(damaged, 2):
        entry.write_bytes(content)
        with pytest.warns(UserWarning, match="damaged and will be replaced"):
            again = gpumem.sweep(models.tower, GRID, cache=tmp_path)
        assert again.to_json() == good.to_json()
        assert len(runs) == count
    gpumem.sweep(models.tower, GRID, cache=tmp_path)
    assert len(runs) == len(damaged) + 1


def test_the_users_code_counts(tmp_path: Path, runs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_layers.py").write_text("WIDTH = 8\n")
    (tmp_path / "own_model.py").write_text(
        "import own_layers\nfrom torch import nn\ndef make(): return nn.Linear(64, own_layers.WIDTH), (64,)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def swept() -> int:
        for name in ("own_model", "own_layers"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        table = gpumem.sweep("own_model:make", {"batch": 8}, cache=tmp_path / "cache")
        return int(table["requested_bytes_likely"][0])

    first = swept()
    assert swept() == first
    assert len(runs) == 1
    # A module that the factory's module uses.
    (tmp_path / "own_layers.py").write_text("WIDTH = 8000\n")
    assert swept() > first
    assert len(runs) == 2


def test_what_has_no_known_content_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(model="hf:someone/something", loop={})
    Cache(tmp_path).keep(job, Traced(spec="{}"))
    assert Cache(tmp_path).find(job) is None
    assert not list(tmp_path.rglob("*.gz"))


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("in the way")
    with pytest.warns(UserWarning, match="traces are not kept") as said:
        table = gpumem.sweep(models.tower, {**GRID, "precision": ["fp32", "bf16"]}, cache=tmp_path)
    assert len(said) == 1
    assert len(table.filter(error=None)) == len(table)


def test_many_writers_of_one_entry(tmp_path: Path) -> None:
    job = Job(model=models.tower, loop={})
    traced = run(job)
    cache = Cache(tmp_path)
    found: list[Any] = []

    def write_and_read() -> None:
        for _ in range(20):
            cache.keep(job, traced)
            found.append(cache.find(job))

    threads = [threading.Thread(target=write_and_read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(one == traced for one in found)
    assert not list(tmp_path.rglob("*.part"))


def test_the_default_folder_follows_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform.startswith("linux"):
        assert default_folder() == tmp_path / "gpumem"
    assert Cache.at(True).folder == default_folder()
    assert Cache.at(None).folder is Cache.at(False).folder is None
