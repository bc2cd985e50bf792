"""The process on the virtual device: runs the user's program as Python would, and writes what came of it.

    python -m gpumem.virtual.child REPORT SNAPSHOT [-m] PROGRAM ARGUMENTS...

REPORT is the file for the report; SNAPSHOT is one for PyTorch's memory snapshot, or empty.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from gpumem.virtual.control import Control
from gpumem.virtual.counts import count_from_one
from gpumem.virtual.held_memory import held_memory, record_call_sites
from gpumem.virtual.host_reads import HostReads
from gpumem.virtual.peaks import Peaks
from gpumem.virtual.run_report import DeviceUse, RunReport

_SNAPSHOT_ENTRIES = 1_000_000
_EXIT_EXCEPTION = 1


def main() -> int:
    """Run the program and return its exit code."""
    report_file, snapshot_file, *program = sys.argv[1:]
    torch = importlib.import_module("torch")
    control, peaks, reads = Control(), Peaks(torch), _reads(torch)
    count_from_one()
    if snapshot_file:
        torch.cuda.memory._record_memory_history(max_entries=_SNAPSHOT_ENTRIES)
    else:
        record_call_sites(torch)
    control.on_read(reads.note)
    started = time.perf_counter()
    outcome = _run(program, torch, reads.is_program)
    seconds = time.perf_counter() - started
    control.on_read(None)
    if snapshot_file:
        torch.cuda.memory._dump_snapshot(snapshot_file)
    report = replace(
        outcome,
        devices=_devices(control, peaks),
        optimizer_steps=peaks.steps,
        settled_after_steps=peaks.settled_after,
        host_reads=reads.found(),
        unsupported=control.unsupported(),
        guessed_sizes=control.guessed(),
        cudnn=control.cudnn(),
        launches=control.counts().launches,
        seconds=seconds,
    )
    Path(report_file).write_text(report.to_json(), encoding="utf-8")
    return report.exit_code


def _reads(torch: Any) -> HostReads:
    standard_library = str(Path(os.__file__).parent)
    return HostReads((str(Path(torch.__file__).parent), f"{standard_library}/threading.py", runpy.__file__))


def _run(program: list[str], torch: Any, is_program: Callable[[str], bool]) -> RunReport:
    """Run the program; the report has its exit code, outcome and message, and what held the memory if it ran out."""
    about: dict[str, Any] = {"gpu": os.environ["GPUMEM_VGPU_GPU"], "torch": torch.__version__}
    try:
        _start(program)
    except SystemExit as exit:
        if exit.code is None or isinstance(exit.code, int):
            code = exit.code or 0
        else:
            print(exit.code, file=sys.stderr)
            code = _EXIT_EXCEPTION
        return RunReport(**about, exit_code=code, outcome="failed" if code else "finished")
    except BaseException as error:
        _print_exception(error)
        # The second is what a device without room for the context answers.
        ran_out = isinstance(error, torch.OutOfMemoryError) or str(error).startswith("CUDA error: out of memory")
        return RunReport(
            **about,
            exit_code=_EXIT_EXCEPTION,
            outcome="out of memory" if ran_out else "failed",
            message=f"{type(error).__name__}: {error}",
            # The exception's frames still hold what their variables name.
            held=held_memory(torch, is_program) if ran_out else (),
        )
    return RunReport(**about, exit_code=0, outcome="finished")


def _start(program: list[str]) -> None:
    """Run a script, or a module after `-m`, with the arguments and the search path that Python gives it."""
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


def _print_exception(error: BaseException) -> None:
    """The traceback from the program's first frame on."""
    skipped = (__file__, runpy.__file__)
    frames: TracebackType | None = error.__traceback__
    while frames is not None and (
        frames.tb_frame.f_code.co_filename in skipped or frames.tb_frame.f_code.co_filename.startswith("<frozen runpy")
    ):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)


def _devices(control: Control, peaks: Peaks) -> tuple[DeviceUse, ...]:
    used = []
    for index in range(control.device_count()):
        account = control.account(index)
        if not account.context_bytes and not account.peak_bytes:
            continue
        number = control.number(index)
        assert number is not None, "a device in use is seen"
        requested, allocated, reserved = peaks.of(number)
        retries, failures = peaks.retries(number)
        used.append(
            DeviceUse(
                index=index,
                requested_peak_bytes=requested,
                allocated_peak_bytes=allocated,
                reserved_peak_bytes=reserved,
                device_peak_bytes=account.peak_bytes + account.context_bytes,
                context_bytes=account.context_bytes,
                total_bytes=account.total_bytes,
                retries=retries,
                out_of_memory=failures,
            )
        )
    return tuple(used)


def _leave(code: int) -> NoReturn:
    """End the process as Python does, up to the point where it takes the interpreter apart.

    A thread of the autograd engine that is still dropping its last Python objects would then be ended by Python (before
    3.14) in the middle of C++ code, which aborts the process: without kernels to wait for, short programs get there
    first. `multiprocessing` leaves its processes in the same way.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
