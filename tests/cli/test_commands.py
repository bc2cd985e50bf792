"""Whole commands: what stands on stdout, what on stderr, and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpumem
from gpumem import api
from gpumem.cli import EXIT_DOES_NOT_FIT, EXIT_ERROR, EXIT_FITS, main

FACTORY = "tiny_models:mlp"


@pytest.fixture(autouse=True)
def tiny_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_models.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def mlp(): return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), (64,)\n"
        "class Branches(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(64, 8)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x) if len(x) % 2 else self.layer(x).relu().exp()\n"
        "def branches(): return Branches(), (64,)\n"
    )
    # As on a real command line, the current folder is where factories are looked for.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "tiny_models", raising=False)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_estimate_shows_the_report_and_says_that_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, "estimate", FACTORY, "--batch", "32", "--gpu", "rtx3090", "--optimizer", "adamw")
    assert code == EXIT_FITS
    assert err == ""
    assert out.startswith(f"{FACTORY}, batch 32  train · fp32 · AdamW")
    assert "Fits in 23.69 GiB" in out
    for name in ("requested", "allocated", "reserved", "device"):
        assert f"\n {name}" in out


def test_estimate_agrees_with_the_python_api(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--precision",
        "amp-bf16",
        "--optimizer",
        "sgd:momentum=0.9",
        "--zero-grad",
        "zero",
        "--accumulate",
        "2",
    ]
    code, out, _ = _run(capsys, "estimate", FACTORY, "-b", "48", "--gpu", "a100-80gb", "--json", *arguments)
    assert code == EXIT_FITS
    from tiny_models import mlp  # type: ignore[import-not-found]

    model, shape = mlp()
    expected = api.estimate(
        model,
        shape,
        batch=48,
        gpu="a100-80gb",
        precision="amp-bf16",
        optimizer=("sgd", {"momentum": 0.9}),
        zero_grad="zero",
        accumulate=2,
    )
    answer = json.loads(out)
    assert answer["report"] == expected.to_dict()
    assert answer["model"] == FACTORY


def test_a_budget_that_is_too_small_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["--budget", "800MB", "--context", "500MB"]
    code, out, _ = _run(capsys, "estimate", FACTORY, "-b", "2000000", *budget)
    assert code == EXIT_DOES_NOT_FIT
    assert "Does not fit in 762.94 MiB (800,000,000 bytes)" in out
    code, out, _ = _run(capsys, "estimate", FACTORY, "-b", "2000000", *budget, "--json")
    assert code == EXIT_DOES_NOT_FIT
    assert json.loads(out)["report"]["fits"] is False


def test_without_a_budget_the_exit_code_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "estimate", FACTORY, "-b", "8", "--json")
    assert code == EXIT_FITS
    assert json.loads(out)["report"]["fits"] is None


def test_max_batch_fits_and_the_next_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    budget = ("--budget", "1GB", "--context", "400MB")
    code, out, err = _run(capsys, "max-batch", FACTORY, *budget, "--json")
    assert (code, err) == (EXIT_FITS, "")
    answer = json.loads(out)
    largest = answer["max_batch"]
    assert answer["report"]["batch"] == largest > 0
    assert _run(capsys, "estimate", FACTORY, "-b", str(largest), *budget)[0] == EXIT_FITS
    assert _run(capsys, "estimate", FACTORY, "-b", str(largest + 1), *budget)[0] == EXIT_DOES_NOT_FIT
    code, out, _ = _run(capsys, "max-batch", FACTORY, *budget)
    assert out.startswith(f"Largest batch that fits 953.67 MiB: {largest}\n")


def test_max_batch_of_a_model_that_branches_on_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    model = "tiny_models:branches"
    budget = ("--budget", "430MB", "--context", "400MB")
    code, out, _ = _run(capsys, "max-batch", model, *budget, "--json")
    assert code == EXIT_FITS
    largest = json.loads(out)["max_batch"]
    assert json.loads(out)["report"]["batch"] == largest
    assert _run(capsys, "estimate", model, "-b", str(largest + 1), *budget)[0] == EXIT_DOES_NOT_FIT


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    budget = ("--budget", "401MB", "--context", "400MB")
    code, out, _ = _run(capsys, "max-batch", FACTORY, *budget)
    assert code == EXIT_DOES_NOT_FIT
    assert "not even batch 1 fits" in out
    code, out, _ = _run(capsys, "max-batch", FACTORY, *budget, "--json")
    answer: dict[str, Any] = json.loads(out)
    assert code == EXIT_DOES_NOT_FIT
    assert answer["max_batch"] == 0
    assert answer["smallest_bytes"] > answer["budget_bytes"] == 401_000_000


def test_an_input_shape_replaces_the_factorys(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys, "estimate", FACTORY, "-b", "8", "--input", "7,64", "--json")
    assert json.loads(out)["report"]["input"] == "float32[b, 7, 64]"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["estimate", FACTORY, "-b", "8", "--budget", "24 gigs"], "unknown unit 'gigs'", '"24GB"'),
        (["estimate", FACTORY, "-b", "8", "--budget=-1GB"], "must be positive", '"24GB"'),
        (["estimate", FACTORY, "-b", "8", "--gpu", "rtx3091"], "unknown GPU 'rtx3091'", "rtx3090"),
        (["estimate", FACTORY, "-b", "8", "--optimizer", "adamm"], "unknown optimizer 'adamm'", "adam"),
        (["estimate", FACTORY, "-b", "8", "--precision", "fp17"], "fp17", "fp16"),
        (["estimate", FACTORY, "-b", "8", "--mode", "trian"], "trian", "train"),
        (["estimate", FACTORY, "-b", "8", "--stack", "cuda"], "cuda", "torch-2.14+cu130"),
        (["estimate", FACTORY, "-b", "8", "--alloc-conf", "max_split:1"], "max_split", ""),
        (["estimate", FACTORY, "-b", "0"], "batch must be a positive integer", ""),
        (["estimate", FACTORY, "-b", "8", "--input", "3,x"], "cannot read the input shape", "3,224,224"),
        (["estimate", FACTORY, "-b", "8", "--input", "63"], "mat1 and mat2 shapes", "the model's own"),
        (["estimate", "torchvison:resnet50", "-b", "8"], "no library or module", "did you mean torchvision:resnet50"),
        (["estimate", "tiny_models:absent", "-b", "8"], "tiny_models has no 'absent'", ""),
        (["max-batch", FACTORY, "--budget", "100MB"], "CUDA context", "context="),
    ],
)
def test_mistakes_are_two_lines_on_stderr(
    arguments: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _run(capsys, *arguments)
    assert code == EXIT_ERROR
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert hint in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["estimate"],
        ["estimate", FACTORY],
        ["estimate", FACTORY, "-b", "many"],
        ["estimate", FACTORY, "-b", "8", "--gpus", "2"],
        ["max-batch", FACTORY],
        ["unknown-command"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, *arguments)
    assert code == EXIT_ERROR
    assert out == ""
    assert "Usage: gpumem" in err


def test_a_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(capsys, "--traceback", "estimate", FACTORY, "-b", "8", "--input", "63")
    assert code == EXIT_ERROR
    assert "Traceback" in err
    assert "mat1 and mat2" in err or "The above exception was the direct cause" in err


def test_an_error_of_our_own_never_looks_like_an_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(api, "estimate", broken)
    code, out, err = _run(capsys, "estimate", FACTORY, "-b", "8")
    assert (code, out) == (EXIT_ERROR, "")
    assert "ZeroDivisionError: a bug" in err


def test_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "gpus", "--json")
    assert code == EXIT_FITS
    listed = json.loads(out)
    assert [gpu["name"] for gpu in listed] == [gpu.name for gpu in gpumem.gpus()]
    assert {"rtx3090", "a100-40gb", "a100-80gb", "t4", "l4", "h200", "b200"} <= {gpu["name"] for gpu in listed}
    code, out, _ = _run(capsys, "gpus")
    assert code == EXIT_FITS
    assert "rtx3090" in out


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "--version")
    assert (code, out) == (EXIT_FITS, "gpumem 0.1.0\n")
    code, out, _ = _run(capsys, "--help")
    assert code == EXIT_FITS
    assert "0 fits, 1 does not fit, 2 error" in out


def test_the_installed_command_and_the_module_are_the_same() -> None:
    arguments = ["gpus", "--json"]
    script = Path(sys.executable).with_name("gpumem")
    outputs = [
        subprocess.run([*command, *arguments], capture_output=True, text=True, check=True, timeout=60)
        for command in ([str(script)], [sys.executable, "-m", "gpumem"])
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert outputs[0].stderr == outputs[1].stderr == ""
