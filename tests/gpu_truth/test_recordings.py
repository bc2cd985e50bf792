"""Whatever was recorded on real cards: histories replay exactly, predictions are within their tolerances."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from gpumem.hardware import confirmed
from tests.gpu_truth.compare import CONFIRMED, REPOSITORY, compared, confirmed_line
from tests.gpu_truth.predict import Compared, replayed
from tests.gpu_truth.recording import Recording, read, recordings

FOLDERS = recordings()
_PARAMETERS: list[Path | None] = [*FOLDERS] or [None]
NOTHING = "NOTHING WAS RECORDED ON REAL HARDWARE: tests/data/gpu is empty"
UNCONFIRMED = "Nothing has been confirmed on a card of our own yet."


@functools.cache
def _recording(folder: Path) -> Recording:
    return read(folder)


@functools.cache
def _compared(folder: Path) -> list[Compared | str]:
    return [one for _, one in compared(_recording(folder))]


@pytest.fixture(params=_PARAMETERS, ids=lambda folder: "none" if folder is None else folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    if request.param is None:
        pytest.skip(NOTHING)
    found: Path = request.param
    return found


def test_every_history_replays_exactly(folder: Path) -> None:
    differences, _ = replayed(_recording(folder))
    assert differences
    assert {name: text for name, text in differences.items() if text} == {}


@pytest.mark.timeout(900)
def test_predictions_are_within_their_tolerances(folder: Path) -> None:
    found = [one for one in _compared(folder) if isinstance(one, Compared)]
    assert found
    assert [text for one in found for text in one.complaints()] == []


def test_what_the_product_says_is_confirmed_is_what_was_recorded() -> None:
    real = [_recording(folder) for folder in FOLDERS if not _recording(folder).is_virtual]
    lines = [confirmed_line(one, list(compared(one))) for one in real]
    written = [line for line in CONFIRMED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert written == [line for line in lines if line]
    assert [(one.gpu, one.torch) for one in confirmed()] == [tuple(line.split("\t")[:2]) for line in written]
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert (UNCONFIRMED in readme) == (not written)
