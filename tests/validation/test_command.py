"""`gpumem validate`: exit codes, the receipt, plans from files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import gpumem
from gpumem.cli import main
from tests.validation import small

BLOCKS = "tests.validation.small:blocks"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["validate", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_confirmed_is_0_and_leaves_a_receipt(
    virtual_gpu: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    receipt = tmp_path / "receipt.json"
    arguments = ("-b", "8", "--on", "virtual:t4", "--input", "64", "--optimizer", "adam", "--precision", "amp-fp16")
    code, out, err = _run(capsys, BLOCKS, *arguments, "--receipt", str(receipt))
    assert (code, err) == (0, "")
    assert out.startswith(f"{BLOCKS}, batch 8  train · amp-fp16 · Adam()")
    assert "Confirmed: it ran; predicted and measured: equal" in out
    kept = json.loads(receipt.read_text())
    assert (kept["model"], kept["verdict"], kept["device"]["on"]) == (BLOCKS, "equal", "virtual:t4")
    assert kept["loop"] == {"precision": "amp-fp16", "optimizer": "Adam()", "input": "64", "gpu": "t4"}


def test_not_confirmed_is_1(virtual_gpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(
        capsys, "tests.validation.small:leaks", "-b", "8", "--on", "virtual:t4", "--mode", "infer", "--json"
    )
    assert code == 1
    assert gpumem.Validation.from_json(out).verdict == "outside"


def test_a_plan_from_a_file(virtual_gpu: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = gpumem.plan(small.blocks(), "64", budget="700MB", context="500MB", gpu="t4", objective="batch")
    assert plan.regions
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"model": BLOCKS, "plan": json.loads(plan.to_json())}))
    code, out, _ = _run(capsys, BLOCKS, "--plan", str(file), "--input", "64", "--json", "--context", "500MB")
    answer = gpumem.Validation.from_json(out)
    assert (code, answer.verdict) == (0, "equal"), str(answer)
    assert answer.plan == plan
    assert answer.device.on == "virtual:t4"
    assert answer.device.total_bytes == answer.budget_bytes == plan.budget_bytes == 700 * 10**6


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((BLOCKS, "-b", "8", "--input", "64"), "not said where to run", "--on virtual:rtx3090"),
        ((BLOCKS, "-b", "8", "--input", "64", "--on", "tpu"), "on='tpu' is no device", "--on cuda:0"),
        ((BLOCKS, "--input", "64", "--on", "virtual:t4"), "a batch size is needed", "--bracket"),
        ((BLOCKS, "-b", "8", "--on", "virtual:t5"), "unknown GPU 't5'", "t4"),
        ((BLOCKS, "-b", "8", "--plan", "missing.json"), "the plan 'missing.json' cannot be read", ""),
        ((BLOCKS, "-b", "8", "--plan", __file__), "is no plan", "gpumem plan --json"),
        (("tests.validation.small:absent", "-b", "8", "--on", "virtual:t4"), "has no 'absent'", ""),
    ],
)
def test_an_error_is_2(arguments: tuple[str, ...], message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert hint in err
    assert "Traceback" not in err
