from __future__ import annotations

import dataclasses

import pytest

from gpumem.virtual import DeviceTotal, DeviceUse, HeldMemory, HostRead, ProcessUse, RunReport
from gpumem.virtual.text import run_text

REPORT = RunReport(
    gpu="rtx3090",
    torch="2.14.1+cu130",
    exit_code=0,
    outcome="finished",
    devices=(
        DeviceUse(
            index=0,
            requested_peak_bytes=1 << 30,
            allocated_peak_bytes=2 << 30,
            reserved_peak_bytes=3 << 30,
            device_peak_bytes=4 << 30,
            context_bytes=1 << 30,
            total_bytes=24 << 30,
            retries=1,
            out_of_memory=0,
        ),
    ),
    processes=tuple(
        ProcessUse(
            process=process,
            device=0,
            device_peak_bytes=4 << 30,
            context_bytes=1 << 30,
            refusals=2,
            largest_refused_bytes=1 << 30,
        )
        for process in (7, 8)
    ),
    totals=(DeviceTotal(device=0, device_peak_bytes=7 << 30, processes=2),),
    optimizer_steps=10,
    settled_after_steps=2,
    held=(HeldMemory(site="train.py:3 main", held_bytes=5 << 20, blocks=7),),
    host_reads=(
        HostRead(site="train.py:7 <module>", use="branch", reads=10, read_bytes=40, scalars=10),
        HostRead(site="train.py:9 <module>", use="value", reads=10, read_bytes=40, scalars=10),
    ),
    unsupported={"cudaMallocAsync": 1},
    guessed_sizes={"cudnnGetRNNTempSpaceSizes": 2},
    cudnn="stub",
    seconds=1.25,
)


def test_a_report_survives_json() -> None:
    assert RunReport.from_json(REPORT.to_json()) == REPORT
    with pytest.raises(ValueError, match="schema"):
        RunReport.from_json('{"schema": 99}')


def test_the_text_says_all_that_is_in_the_report() -> None:
    text = run_text(REPORT)
    for part in (
        "Finished after 1.2 s on a virtual rtx3090 (torch 2.14.1+cu130).",
        "peak requested     1.00 GiB",
        "peak device        4.00 GiB  of 24.00 GiB; 1.00 GiB assumed for the context",
        "process 8 on cuda:0: device peak 4.00 GiB, 1.00 GiB of it assumed for the context; refused 2 times",
        "all 2 processes on cuda:0: device peak 7.00 GiB at one time",
        "given back for room: 1 times",
        "5.00 MiB  train.py:3 main  (7 blocks)",
        "Optimizer steps: 10; peaks last rose by step 2.",
        "20 reads.",
        "10 x  train.py:7 <module>  (a branch hangs on it)",
        "Refused by the virtual device: cudaMallocAsync.",
        "before 9.8",
        "cudnnGetRNNTempSpaceSizes",
    ):
        assert part in text


def test_values_on_which_nothing_hangs_are_not_blamed() -> None:
    text = run_text(dataclasses.replace(REPORT, host_reads=REPORT.host_reads[1:]))
    assert "10 reads.\n  No branch was seen to hang on them." in text
    assert "train.py:9" not in text


def test_endings() -> None:
    failed = dataclasses.replace(REPORT, outcome="out of memory", message="OutOfMemoryError: CUDA\nmore", exit_code=1)
    assert run_text(failed).startswith("Out of memory after 1.2 s on a virtual rtx3090 (torch 2.14.1+cu130): OutOf")
    died = RunReport(gpu="t4", torch="2.8", exit_code=-9, outcome="died")
    assert run_text(died).startswith(
        "The program ended by signal 9 on a virtual t4 (torch 2.8) before it could report."
    )
