"""Any executor runs the traces; Ctrl-C ends a sweep and keeps what is done."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import gpumem
from gpumem.errors import ExtractionError, InputError
from tests.sweep import models

GRID = {"batch": [8, 16], "gpu": "t4", "precision": ["fp32", "bf16"]}


class Pickling(Executor):
    """Sends what it is given through bytes, as another machine would."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        assert not keywords
        future: Future[Any] = Future()
        there, given = pickle.loads(pickle.dumps((function, arguments)))
        future.set_result(pickle.loads(pickle.dumps(there(*given))))
        return future


class Foreign:
    """Has `submit` and futures with `result`, and nothing else."""

    class Later:
        def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
            self.function, self.arguments = function, arguments

        def result(self) -> Any:
            return self.function(*self.arguments)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        return self.Later(function, arguments)


@pytest.fixture(scope="module")
def expected() -> str:
    return gpumem.sweep(models.tower, GRID, cache=None).to_json()


def test_executors_give_the_same_table(expected: str) -> None:
    assert gpumem.sweep(models.tower, GRID, cache=None, executor=Pickling()).to_json() == expected
    assert gpumem.sweep(models.tower, GRID, cache=None, executor=Foreign()).to_json() == expected
    with ThreadPoolExecutor(2) as threads:
        assert gpumem.sweep(models.tower, GRID, cache=None, executor=threads).to_json() == expected


def test_processes_give_the_same_table(expected: str, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        table = gpumem.sweep(models.tower, GRID, cache=tmp_path, executor=processes)
    assert table.to_json() == expected
    # Found by this process, too.
    assert gpumem.sweep(models.tower, GRID, cache=tmp_path, executor=Foreign()).to_json() == expected


def test_own_processes_and_one_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpumem.sweeping import execute

    monkeypatch.setattr(execute, "_FEWEST_FOR_PROCESSES", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(ExtractionError, match="ended before it answered"):
        gpumem.sweep("os:abort", {"batch": 8}, cache=None)


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    started: list[Any] = []

    class Interrupted(Foreign):
        class Later(Foreign.Later):
            cancelled = 0

            def result(self) -> Any:
                started.append(self)
                if len(started) == 2:
                    raise KeyboardInterrupt
                return super().result()

            def cancel(self) -> None:
                Interrupted.Later.cancelled += 1

    with pytest.raises(KeyboardInterrupt):
        gpumem.sweep(models.tower, {**GRID, "optimizer": ["sgd", "adamw"]}, cache=tmp_path, executor=Interrupted())
    assert Interrupted.Later.cancelled == 4
    assert len(list(tmp_path.rglob("*.gz"))) == 1


def test_progress_is_told_and_can_interrupt() -> None:
    told: list[tuple[str, int, int]] = []
    table = gpumem.sweep(models.tower, GRID, cache=None, progress=lambda *what: told.append(what))
    assert [what for what in told if what[0] == "tracing"] == [("tracing", 1, 2), ("tracing", 2, 2)]
    assert told[-1] == ("evaluating", len(table), len(table))

    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gpumem.sweep(models.tower, GRID, cache=None, progress=stop)


def test_an_executor_that_returns_something_else() -> None:
    class Wrong(Foreign):
        class Later(Foreign.Later):
            def result(self) -> Any:
                return 3

    with pytest.raises(InputError, match="returned int"):
        gpumem.sweep(models.tower, GRID, cache=None, executor=Wrong())
