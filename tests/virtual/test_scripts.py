"""Programs in the shape of public training scripts; `python -m tests.virtual.scripts` runs all, on several cards."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torchvision

import gpumem
from gpumem import virtual
from gpumem.virtual import RunReport
from tests.virtual.script_list import PROGRAMS, SCRIPTS, Script
from tests.virtual.scripts import printed, row, run

CARD = "a100-80gb"
CONTEXT = ("--context", "500MB")


def _finished(*command: str, **settings: Any) -> tuple[RunReport, dict[str, Any]]:
    """The report, and the last JSON object that was printed."""
    report, lines = run(Script("", command, **settings), CARD)
    assert report.outcome == "finished", report.message
    return report, (printed(lines) or [{}])[-1]


def _program(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"program_{name}", PROGRAMS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Dataclasses look up their module.
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("virtual_gpu")
def test_nanogpt_takes_what_is_estimated() -> None:
    gpt = _program("gpt")
    size = gpt.Size(layers=2)
    _, said = _finished("nanogpt.py", "--layers", "2", "--batch-size", "4")
    estimate = gpumem.estimate(
        gpt.Gpt(size),
        ((size.length,), torch.int64),
        batch=4,
        gpu=CARD,
        precision="amp-bf16",
        optimizer="adamw(fused=True)",
        accumulate=2,
        clip_grad_norm=1.0,
        criterion=gpt.loss_of,
        target=((size.length,), torch.int64),
    )
    assert (said["requested"], said["allocated"], said["reserved"]) == (
        int(estimate.requested_peak),
        int(estimate.allocated_peak),
        int(estimate.reserved_peak),
    )


@pytest.mark.usefixtures("virtual_gpu")
def test_halving_ends_at_the_batch_that_is_said_to_fit() -> None:
    report, said = _finished("halving.py", "512", options=("--budget", "8GB", *CONTEXT))
    spec = gpumem.extract(torchvision.models.vit_b_32(), optimizer="adamw")
    batch = 512
    while not spec.fits(batch, gpu=CARD, budget="8GB", context="500MB"):
        batch //= 2
    assert said["batch"] == batch < 512
    assert report.devices[0].out_of_memory > 0


@pytest.mark.usefixtures("virtual_gpu")
def test_each_kind_of_checkpoint_lowers_the_peak() -> None:
    _, peaks = _finished("checkpoints.py")
    whole = peaks["non-reentrant"]
    assert peaks["reentrant"] == peaks["wrapped"] == whole
    assert whole < peaks["selective"] < peaks["plain"]
    assert whole < peaks["sequential"] < peaks["plain"]


@pytest.mark.usefixtures("virtual_gpu")
def test_the_history_holds_every_event() -> None:
    _, said = _finished("history.py")
    assert said["peak of the history"] == said["requested"] <= said["allocated"] <= said["reserved"] == said["segments"]
    assert 0 < said["with a line of this file"] < said["events"]


@pytest.mark.usefixtures("virtual_gpu")
def test_expandable_segments_reserve_what_is_allocated() -> None:
    _, plain = _finished("segments.py")
    _, said = _finished("segments.py", variables={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert plain["expandable"] == 0 < said["expandable"]
    # One of each pool and stream, which grow by pages of 2 and 20 MiB.
    assert said["segments"] < plain["segments"]
    assert said["reserved"] - said["allocated"] < 64 << 20 < plain["reserved"] - plain["allocated"]


@pytest.mark.usefixtures("virtual_gpu")
@pytest.mark.parametrize("command", ["graphs.py callables", "graphs.py capture", "graphs.py pool", "streams.py"])
def test_graphs_and_streams(command: str) -> None:
    report, _ = _finished(*command.split())
    assert report.unsupported == {}


@pytest.mark.usefixtures("virtual_gpu")
def test_what_is_moved_to_the_host_is_not_on_the_card() -> None:
    report, peaks = _finished("offload.py", "activations")
    # Six blocks save the input of their layer and of their GELU; the last of each are still there when backward begins.
    saved = 2 * 6 * 4096 * 1024 * 4
    assert saved * 2 // 3 < peaks["on the card"] - peaks["on the host"] <= saved
    assert report.host_reads


@pytest.mark.usefixtures("virtual_gpu")
def test_fully_sharded_processes_need_the_same() -> None:
    report, lines = run(Script("", ("fsdp.py", "--spawn", "--layers", "2"), gpus=2), CARD)
    assert report.outcome == "finished", report.message
    first, second = ({name: rank[name] for name in ("requested", "allocated", "reserved")} for rank in printed(lines))
    assert first == second
    took = {use.device: use.device_peak_bytes - use.context_bytes for use in report.processes if use.device_peak_bytes}
    assert took == {0: first["reserved"], 1: second["reserved"]}


@pytest.mark.usefixtures("virtual_gpu")
@pytest.mark.parametrize(
    ("packages", "command", "steps"),
    [
        (("transformers", "accelerate"), "hf_trainer.py gpt2 --layers 2 --gradient-checkpointing", 3),
        (("lightning",), "lightning_fit.py --batch-size 8 --width 8", 8),
        (("timm",), "timm_train.py --model vit_tiny_patch16_224 --batch-size 2 --updates 2", 2),
        (("torchvision",), "classification.py --model resnet18 --size 64 --amp --model-ema --steps 2 --epochs 1", 2),
    ],
)
def test_trainers_run(packages: tuple[str, ...], command: str, steps: int) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    report, _ = _finished(*command.split())
    assert report.optimizer_steps == steps
    assert any(read.scalars for read in report.host_reads)


@pytest.mark.usefixtures("virtual_gpu")
def test_batch_norm_without_momentum_counts_at_least_one_batch(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from torch.optim.swa_utils import AveragedModel, update_bn\n"
        "norm = torch.nn.BatchNorm2d(8).cuda()\n"
        "update_bn([torch.zeros(2, 8, 4, 4)] * 2, AveragedModel(norm), 'cuda')\n"
        "print(float(norm.num_batches_tracked))\n"
    )
    report = virtual.run([str(program)], gpu=CARD)
    assert (report.outcome, report.message) == ("finished", "")
    # The reads are what they were: two by batch norm, one by the program.
    assert sorted((read.site.rpartition(":")[2], read.reads) for read in report.host_reads) == [
        ("4 <module>", 2),
        ("5 <module>", 1),
    ]


def test_every_program_of_the_list_exists_and_has_a_name_of_its_own() -> None:
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)
    assert all((PROGRAMS / script.command[0]).is_file() for script in SCRIPTS)


def test_a_row_has_the_largest_of_the_processes() -> None:
    report = RunReport(gpu=CARD, torch="2", exit_code=1, outcome="failed", message="ValueError: x\ny")
    ranks = [f'{{"rank": {rank}, "requested": {rank}, "allocated": 7, "reserved": 9}}' for rank in (1, 2)]
    text = row(SCRIPTS[0], CARD, report, ["{not json}", *ranks])
    assert "failed: ['ValueError: x']" in text
    assert "| 2 B | 7 B | 9 B |" in text
    assert Path(PROGRAMS).is_dir()
