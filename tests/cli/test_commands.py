"""Whole commands: what stands on stdout, what on stderr, and the exit code."""

from __future__ import annotations

import inspect
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpumem
from gpumem import api
from gpumem.cli import EXIT_DOES_NOT_FIT, EXIT_ERROR, EXIT_FITS, EXIT_INTERRUPTED, main
from gpumem.cli.commands import keywords

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
        "class Reads(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(64, 8)\n"
        "    def forward(self, x):\n"
        "        y = self.layer(x)\n"
        "        return y * y.sum().item()\n"
        "def reads(): return Reads(), (64,)\n"
        "class Block(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.up, self.down = nn.Linear(64, 512), nn.Linear(512, 64)\n"
        "    def forward(self, x):\n"
        "        return x + self.down(self.up(x).relu())\n"
        "class Tower(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.blocks = nn.ModuleList(Block() for _ in range(4))\n"
        "    def forward(self, x):\n"
        "        for block in self.blocks:\n"
        "            x = block(x)\n"
        "        return x.mean(1)\n"
        "def tower(): return Tower(), (64, 64)\n"
        "def unknown_input(): return nn.Linear(64, 8)\n"
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
        (
            ["estimate", FACTORY, "-b", "8", "--gpu", "rtx3091"],
            "unknown GPU 'rtx3091'",
            "rtx3070; `gpumem gpus` lists all",
        ),
        (["estimate", FACTORY, "-b", "8", "--optimizer", "adamm"], "unknown optimizer 'adamm'", "adam"),
        (["estimate", FACTORY, "-b", "8", "--precision", "fp17"], "fp17", "fp16"),
        (["estimate", FACTORY, "-b", "8", "--mode", "trian"], "trian", "train"),
        (["estimate", FACTORY, "-b", "8", "--stack", "cuda"], "cuda", "torch-2.14+cu130"),
        (["estimate", FACTORY, "-b", "8", "--stack", "torch-1.2"], "nothing is known about torch-1.2", "torch-1.3"),
        (["estimate", FACTORY, "-b", "8", "--alloc-conf", "max_split:1"], "max_split", ""),
        (["estimate", FACTORY, "-b", "-3"], "positive integer, not -3", ""),
        (["estimate", FACTORY, "-b", "1" + 30 * "0"], "batch must be a positive integer", ""),
        (["estimate", FACTORY, "-b", "8", "--gpu", ""], "unknown GPU ''", "or give --budget and leave --gpu out"),
        (["estimate", FACTORY, "-b", "8", "--optimizer", "sgd(momentum=0.9"], "is not closed", "sgd(momentum=0.9)"),
        (["estimate", FACTORY, "-b", "8", "--optimizer", "sgd(0.9)"], "optimizer's arguments '0.9'", "momentum=0.9"),
        (["estimate", FACTORY, "-b", "8", "--host-reads", "ones"], "unknown host_reads 'ones'", "error, zeros"),
        (["estimate", "tiny_models:reads", "-b", "8"], ".item()", "pass --host-reads zeros to"),
        (["estimate", "tiny_models:unknown_input", "-b", "8"], "input of Linear is unknown", "--input 128:int64"),
        (["estimate", "", "-b", "8"], "model '' names no library", "torchvision:NAME"),
        (["estimate", "größe:ß", "-b", "8"], "no library or module 'größe'", ""),
        (["estimate", "torchvision:fasterrcnn_resnet50_fpn", "-b", "2"], "chooses boxes", "in Python only"),
        (["estimate", FACTORY, "-b", "0"], "batch must be a positive integer", ""),
        (["estimate", FACTORY, "-b", "8", "--input", "3,x"], "cannot read the input shape", "3,224,224"),
        (["estimate", FACTORY, "-b", "8", "--input", "63"], "mat1 and mat2 shapes", "the model's own"),
        (["estimate", "torchvison:resnet50", "-b", "8"], "no library or module", "did you mean torchvision:resnet50"),
        (["estimate", "tiny_models:absent", "-b", "8"], "tiny_models has no 'absent'", ""),
        (["max-batch", FACTORY, "--budget", "100MB"], "CUDA context", "pass --context"),
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


def test_the_largest_batch_that_is_none_shows_sizes_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys, "max-batch", FACTORY, "--budget", "401MB", "--context", "400MB")
    assert re.search(r"needs up to [\d.]+ MiB \([\d,]+ bytes\) on the device", out)
    assert "the budget is 382.42 MiB (401,000,000 bytes)" in out


def test_a_context_of_zero_and_a_budget_beyond_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("-b", "8", "--gpu", "rtx3090", "--budget", "25GB", "--context", "0", "--json")
    code, out, _ = _run(capsys, "estimate", FACTORY, *arguments)
    report = json.loads(out)["report"]
    assert code == EXIT_FITS
    assert report["device_peak"] == report["reserved_peak"]
    assert not any("more than" in line for line in report["assumptions"])
    _, out, _ = _run(capsys, "estimate", FACTORY, *arguments, "--budget", "26GB")
    assert "the budget is more than rtx3090 has: 23.69 GiB" in json.loads(out)["report"]["assumptions"]


def test_values_that_are_read_can_be_taken_as_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "estimate", "tiny_models:reads", "-b", "8", "--host-reads", "zeros", "--json")
    assert code == EXIT_FITS
    said = json.loads(out)["report"]["assumptions"]
    assert any(
        "taken as zero: aten::_local_scalar_dense (.item()" in line and "the model itself" in line for line in said
    )


def test_a_name_of_several_cards_says_which_was_taken(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys, "estimate", FACTORY, "-b", "8", "--gpu", "A100", "--json")
    report = json.loads(out)["report"]
    assert report["gpu"] == "a100-40gb"
    assert (
        '"A100" is several cards: a100-40gb (39.38 GiB) was taken, not a100-80gb (79.25 GiB)' in report["assumptions"]
    )
    _, out, _ = _run(capsys, "max-batch", FACTORY, "--gpu", "a100")
    assert out.startswith("Largest batch that fits a100-40gb, 39.38 GiB: ")
    _, out, _ = _run(capsys, "estimate", FACTORY, "-b", "8", "--gpu", "a100-40gb")
    assert "several cards" not in out


@pytest.mark.parametrize("optimizer", ["sgd:momentum=0.9", "SGD(momentum=0.9)"])
def test_python_takes_the_text_of_the_command_line(optimizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("-b", "8", "--input", "7,64:float32", "--optimizer", optimizer, "--json")
    _, out, _ = _run(capsys, "estimate", FACTORY, *arguments)
    from tiny_models import mlp

    expected = api.estimate(mlp()[0], "7,64:float32", batch=8, optimizer=optimizer)
    assert json.loads(out)["report"] == expected.to_dict()
    assert expected.to_dict()["optimizer"] == "SGD(momentum=0.9)"


def test_without_torch_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_torch(*args: Any, **kwargs: Any) -> Any:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("gpumem.sources.resolve", without_torch)
    code, out, err = _run(capsys, "estimate", FACTORY, "-b", "8")
    assert (code, out) == (EXIT_ERROR, "")
    assert err == "error: a model is extracted with PyTorch, which is not installed\n  hint: pip install torch\n"


def test_ctrl_c_is_no_answer() -> None:
    wait = "import time; print('started', flush=True); time.sleep(60)"
    Path("slow_models.py").write_text(f"def slow():\n    {wait}\n")
    command = [sys.executable, "-m", "gpumem", "estimate", "slow_models:slow", "-b", "8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED
    assert err == "interrupted\n"


def test_a_narrow_terminal_gets_whole_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = _run(capsys, "estimate", FACTORY, "-b", "8")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    for word in ("requested", "workspace", "activation", "max_memory_reserved()", "nvidia-smi"):
        assert word in plain


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
    for command in ("estimate", "max-batch", "plan", "sweep", "validate", "run", "gpus"):
        code, page, _ = _run(capsys, command, "--help")
        assert code == EXIT_FITS
        assert command in out
        # Placeholders say what is meant, not how it is parsed; switches have none.
        assert not re.search(r"--[a-z-]+ <|<bool>|[{}]", page + out)
        assert "..." not in page.partition("\n")[2] + out.partition("\n")[2]


def test_every_option_of_a_loop_is_in_both_apis() -> None:
    from gpumem.extraction import extract

    in_python_only = {"criterion", "target", "step", "batches"}
    assert set(inspect.signature(extract).parameters) - in_python_only <= keywords()


def test_the_installed_command_and_the_module_are_the_same() -> None:
    arguments = ["gpus", "--json"]
    script = Path(sys.executable).with_name("gpumem")
    outputs = [
        subprocess.run([*command, *arguments], capture_output=True, text=True, check=True, timeout=60)
        for command in ([str(script)], [sys.executable, "-m", "gpumem"])
    ]
    assert outputs[0].stdout == outputs[1].stdout
    assert outputs[0].stderr == outputs[1].stderr == ""


def test_plan_shows_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "plan", "tiny_models:tower", "--batch", "64", "--budget", "100MiB", "--context", "0")
    assert code == EXIT_FITS
    assert "Checkpoint" in out
    assert "blocks" in out


def test_plan_prints_json_or_code(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", "tiny_models:tower", "--batch", "64", "--budget", "100MiB", "--context", "0")
    code, out, _ = _run(capsys, *arguments, "--json")
    assert code == EXIT_FITS
    assert json.loads(out)["plan"]["batch"] == 64
    code, out, _ = _run(capsys, *arguments, "--code")
    assert code == EXIT_FITS
    compile(out, "plan", "exec")
    code, _, err = _run(capsys, *arguments, "--code", "--json")
    assert code == EXIT_ERROR
    assert "give one" in err


def test_plan_says_what_would_help_when_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "plan", "tiny_models:tower", "--batch", "64", "--budget", "4MiB", "--context", "0")
    assert code == EXIT_DOES_NOT_FIT
    assert "the least that any needs" in out
    assert "batch 32" in out
    code, _, err = _run(capsys, "plan", "tiny_models:tower", "--batch", "64")
    assert code == EXIT_ERROR
    assert "--gpu or --budget" in err
