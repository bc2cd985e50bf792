"""Several processes on the devices of one run: they share memory, however they end, and see what they are to see."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpumem.virtual import ledger
from gpumem.virtual.environment import LEDGER, Device, environment

# Of each device, MiB; a process's context takes 100.
TOTAL, CONTEXT = 1000, 100
OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE, INVALID_DEVICE = 2, 3, 100, 101
INSUFFICIENT_SIZE = 7  # NVML's


class Process:
    """One that makes the calls it is told to make (programs/calls.py)."""

    def __init__(self, program: Path, variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(program)], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, command: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return ast.literal_eval(self._process.stdout.readline())

    def end(self) -> None:
        """Let it come to its end."""
        with self._process:
            pass
        assert self._process.returncode == 0

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        with self._process:
            self._process.kill()


Start = Callable[..., Process]


@pytest.fixture
def variables(programs: Path) -> Iterator[dict[str, str]]:
    device = Device(gpu="t4", count=3, total_bytes=TOTAL << 20, context_bytes=CONTEXT << 20)
    with environment(device, os.environ) as variables:
        yield variables


@pytest.fixture
def start(programs: Path, variables: dict[str, str]) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(**more: str) -> Process:
            process = Process(programs / "calls.py", variables | more)
            stack.callback(process.kill)
            return process

        yield start


def test_memory_is_shared_and_a_context_is_each_processes_own(start: Start) -> None:
    one, two = start(), start()
    assert one("take 0 300") == 0
    assert one("info 0") == (0, 600, TOTAL)
    assert two("info 0") == (0, 500, TOTAL)
    assert two("take 0 502") == OUT_OF_MEMORY
    assert two("take 0 500") == 0
    assert (one("take 0 2"), one("info 0")) == (OUT_OF_MEMORY, (0, 0, TOTAL))
    assert [one(f"nvml {device}") for device in range(3)] == [TOTAL, 0, 0]
    assert one("take 1 900") == 0
    assert two("give") == 0
    assert one("take 0 500") == 0


def test_nvml_lists_the_processes_with_what_each_uses(start: Start) -> None:
    one, two, idle = start(), start(), start()
    assert idle("processes 0 8") == (0, 0, 0, [])
    assert (one("take 0 300"), two("take 0 50")) == (0, 0)
    assert one("processes 0 8") == (0, 2, 400, [150, 400])
    assert two("processes 0 8") == (0, 2, 150, [150, 400])
    assert idle("processes 0 1") == (INSUFFICIENT_SIZE, 2, 0, [0])
    assert idle("processes 1 8") == (0, 0, 0, [])
    one.kill()
    assert two("processes 0 8") == (0, 1, 150, [150])


def test_without_room_for_a_context_a_device_cannot_be_used(start: Start) -> None:
    one, two = start(), start()
    assert one("take 0 850") == 0
    assert two("take 0 2") == OUT_OF_MEMORY
    assert two("take 1 2") == 0


@pytest.mark.parametrize("how", [Process.end, Process.kill])
def test_the_memory_of_a_process_returns_when_it_ends(start: Start, how: Callable[[Process], None]) -> None:
    one, two, three = start(), start(), start()
    assert (one("take 0 300"), two("take 0 300")) == (0, 0)
    assert three("info 0") == (0, 100, TOTAL)
    how(two)
    assert three("info 0") == (0, 500, TOTAL)
    assert one("nvml 0") == 500
    assert one("take 0 500") == 0


def test_what_each_took_and_all_took_is_known_afterwards(start: Start, variables: dict[str, str]) -> None:
    one, two = start(), start()
    assert (one("take 0 300"), two("take 0 200"), two("give"), two("take 2 50"), one("take 0 900")) == (0, 0, 0, 0, 2)
    two.kill()
    assert one("take 0 100") == 0
    processes, totals = ledger.read(Path(variables[LEDGER]))
    assert [(use.device, use.device_peak_bytes >> 20) for use in processes] == [(0, 500), (0, 300), (2, 150)]
    assert [(use.refusals, use.largest_refused_bytes >> 20) for use in processes] == [(1, 900), (0, 0), (0, 0)]
    assert [(total.device, total.device_peak_bytes >> 20, total.processes) for total in totals] == [
        (0, 700, 2),
        (2, 150, 1),
    ]


def test_more_processes_than_rows_take_those_of_the_dead(start: Start, variables: dict[str, str]) -> None:
    assert start()("take 0 2") == 0
    with Path(variables[LEDGER]).open("r+b") as file:
        row = file.read()[8 * ledger.MOST_DEVICES :][: 8 * (2 + 5 * ledger.MOST_DEVICES)]
        # All other rows are of processes that hold no lock.
        file.seek(8 * ledger.MOST_DEVICES + len(row))
        file.write(row * 1023)
    assert start()("info 0") == (0, TOTAL - 2 * CONTEXT - 2, TOTAL)


def test_a_forked_process_cannot_use_cuda_after_its_parent(start: Start) -> None:
    one = start()
    assert one("nvml 0") == 0
    assert one("fork take 0 100") == 0
    assert one("info 0") == (0, TOTAL - CONTEXT, TOTAL)
    assert one("fork take 0 100") == NOT_INITIALIZED
    assert one("fork nvml 0") == CONTEXT
    assert one("info 0") == (0, TOTAL - CONTEXT, TOTAL)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", [2]),
        ("2,0", [3, 1]),
        ("0,7,1", [1]),
        ("", NO_DEVICE),
        ("-1", NO_DEVICE),
        ("1,1", NO_DEVICE),
        ("GPU-6770756d-656d-2d76-6972-7475616c2d31", [2]),
        ("GPU-6", NO_DEVICE),
    ],
)
def test_the_program_sees_the_visible_devices_in_its_order(start: Start, text: str, expected: object) -> None:
    assert start(CUDA_VISIBLE_DEVICES=text)("buses") == expected


def test_visible_devices_are_read_at_the_first_use_of_cuda(start: Start) -> None:
    one, other = start(), start(CUDA_VISIBLE_DEVICES="1")
    assert (one("nvml 2"), one("set CUDA_VISIBLE_DEVICES 2,1"), one("buses")) == (0, 0, [3, 2])
    assert (one("take 0 50"), one("take 2 1"), other("take 0 30")) == (0, INVALID_DEVICE, 0)
    assert [one(f"nvml {device}") for device in range(3)] == [0, CONTEXT + 30, CONTEXT + 50]
