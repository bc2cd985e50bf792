"""Budgets, the largest batch, and the way a real device is measured, rehearsed on a virtual one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpumem
from gpumem import virtual
from gpumem.validation import Session
from tests.validation import small
from tests.validation.conftest import CARD

_BUDGET = 900 << 20


def test_the_predicted_largest_batch_runs_and_the_next_one_does_not(virtual_gpu: None) -> None:
    answer = gpumem.validate(small.blocks(), (64,), on=CARD, budget=_BUDGET, optimizer="adamw", bracket=True)
    assert answer.verdict == "equal", str(answer)
    assert answer.confirmed
    assert answer.bracket is not None
    assert answer.bracket.exact, answer.bracket.text()
    assert answer.measured.batch == answer.bracket.predicted == answer.predicted.batch
    assert "is out of memory: the largest batch" in str(answer)


def test_an_out_of_memory_that_was_predicted_is_a_confirmation(virtual_gpu: None) -> None:
    with Session(CARD, budget=_BUDGET) as session:
        answer = session.validate(small.blocks(), (64,), batch=900_000, mode="infer")
    assert answer.predicted.fits is False
    assert (answer.verdict, answer.confirmed, answer.ran) == ("out of memory, as predicted", True, False)
    assert answer.out_of_memory.startswith("CUDA out of memory")


_PROGRAM = """
import json, sys
import gpumem
from tests.validation import small
if __name__ == "__main__":
    answers = [
        gpumem.validate(small.blocks(), (64,), batch=64, on="cuda:0"),
        gpumem.validate(small.blocks(), (64,), on="cuda", budget=900 << 20, bracket=True),
    ]
    with open(sys.argv[1], "w") as file:
        json.dump([answer.to_json() for answer in answers], file)
"""


def test_the_way_of_a_real_device(virtual_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, said = tmp_path / "program.py", tmp_path / "answers.json"
    program.write_text(_PROGRAM)
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root / 'python'}:{root}")
    report = virtual.run([str(program), str(said)], gpu="rtx3090")
    assert report.outcome == "finished", report.message
    whole, limited = map(gpumem.Validation.from_json, json.loads(said.read_text()))
    assert whole.verdict == "equal", str(whole)
    assert whole.device.name == "NVIDIA GeForce RTX 3090"
    assert whole.predicted.to_dict()["gpu"] == "rtx3090"
    assert whole.device.measured_by == "NVML, this process"
    assert whole.measured.allowed_bytes is None
    assert all(step.seconds is not None for step in whole.measured.steps)
    # The budget is kept by PyTorch's own limit, at the byte.
    context = limited.predicted.to_dict()["context"]["high"]
    assert limited.measured.allowed_bytes == _BUDGET - context
    assert limited.measured.reserved_peak_bytes <= _BUDGET - context
    assert limited.bracket is not None
    assert limited.bracket.exact, limited.bracket.text()
    assert limited.verdict == "equal", str(limited)
