"""The virtual GPU against allocator histories that other people recorded on real GPUs: every event equal."""

from __future__ import annotations

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
    report = virtual.run([str(programs / "recorded.py"), program], gpu=gpu)
    assert report.outcome == "finished", report.message
    ours = json.loads(capfd.readouterr().out.splitlines()[-1])
    expected = _events(recorded, leave_out_bytes)
    assert len(expected) >= 20
    assert _events(ours, leave_out_bytes) == expected
