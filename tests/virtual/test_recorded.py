"""The virtual GPU against allocator histories that other people recorded on real GPUs: every event equal."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gpumem import virtual

SNAPSHOTS = Path(__file__).resolve().parents[1] / "data" / "snapshots"
LT_WORKSPACE_BYTES = 1 << 20
"""cuBLASLt's workspace, which older torch requests at each call (facts/virtual_vs_real.md, difference 5)."""


def _events(trace: list[list[object]], leave_out_bytes: int = 0) -> list[tuple[str, object]]:
    """Actions with sizes; frees with the position of the allocation that they free."""
    events: list[tuple[str, object]] = []
    index_at: dict[object, int] = {}
    left_out = set()
    count = 0
    for action, address, size, *_ in trace:
        if action == "alloc" and size == leave_out_bytes:
            left_out.add(address)
        elif address in left_out and str(action).startswith("free"):
            if action == "free_completed":
                left_out.remove(address)
        elif action == "alloc":
            index_at[address] = count
            count += 1
            events.append(("alloc", size))
        elif action == "free_requested":
            events.append(("free", index_at.pop(address)))
        elif action != "free_completed":
            events.append((str(action), size))
    return events


@pytest.mark.parametrize(
    ("program", "gpu", "snapshot", "leave_out_bytes"),
    [
        ("attention", "rtx4090", "silmont2000_mem_snapshot_75d09aa_d0", 0),
        ("linear", "h100", "shreyansh26_model_memory_usage_profile_grad_b63fb8c_d0", LT_WORKSPACE_BYTES),
        ("linear_no_grad", "h100", "shreyansh26_model_memory_usage_profile_no_grad_b63fb8c_d0", LT_WORKSPACE_BYTES),
        ("language_model", "rtx4090", "silmont2000_memory_forward_fp32_128_75d09aa_d0", 0),
    ],
)
def test_every_event_is_equal(
    programs: Path, capfd: pytest.CaptureFixture[str], program: str, gpu: str, snapshot: str, leave_out_bytes: int
) -> None:
    recorded = json.loads((SNAPSHOTS / f"{snapshot}.json").read_text())["trace"]
    ours = _history(capfd, gpu, programs / "recorded.py", program)
    expected = _events(recorded, leave_out_bytes)
    assert len(expected) >= 20
    assert _events(ours, leave_out_bytes) == expected


def test_every_event_of_a_training_step_is_equal(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name = "kkaitlyn111_memory_files_memory_ctx128_fullstep_c1272e1_d0.json.gz"
    recorded = json.loads(gzip.decompress((SNAPSHOTS / name).read_bytes()))["trace"]
    ours = _events(_history(capfd, "h100", programs / "recorded_training.py"))
    assert len(ours) == 13448
    assert ours == _events(recorded)


def test_every_event_of_a_forward_pass_in_three_dimensions_is_equal(
    programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = "HugePandaCoder_my_snapshot_e67173f_d0.json.gz"
    recorded = json.loads(gzip.decompress((SNAPSHOTS / name).read_bytes()))["trace"]
    history = _history(capfd, "rtx3090", programs / "recorded_conv3d.py")
    ours = _events([event for event in history if event[0] != "snapshot"])
    # Until the finest grid is done; what follows in the record is a loss and a step of training.
    assert len(ours) == 1506
    assert ours == _events(recorded)[: len(ours)]


def _history(capfd: pytest.CaptureFixture[str], gpu: str, program: Path, *arguments: str) -> list[list[object]]:
    report = virtual.run([str(program), *arguments], gpu=gpu)
    assert report.outcome == "finished", report.message
    history: list[list[object]] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return history
