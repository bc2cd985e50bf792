"""Starts a program on the virtual device and waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpumem.errors import VirtualDeviceError
from gpumem.virtual import installed, ledger
from gpumem.virtual.environment import LEDGER, Device, environment
from gpumem.virtual.run_report import RunReport


def run(
    program: Sequence[str],
    *,
    gpu: str,
    gpus: int = 1,
    budget_bytes: int | None = None,
    context_bytes: int | None = None,
    snapshot: str | os.PathLike[str] | None = None,
    trace: int = 0,
) -> RunReport:
    """Run a Python program on a virtual GPU and say where memory stood.

    The program runs in a child process with this interpreter; its input and output are those of this process.

    Args:
        program: Path of a script and its arguments, or `-m`, a module and its arguments.
        gpu: Name of the card.
        gpus: How many of it there are.
        budget_bytes: Memory of each, context included; the card's when None.
        context_bytes: What the CUDA context takes of it; the likely value for the card when None.
        snapshot: File for PyTorch's memory snapshot (https://pytorch.org/memory_viz), or None.
        trace: 1 writes failing CUDA calls to standard error, 2 all calls.

    Raises:
        VirtualDeviceError: if the virtual device cannot be used here, or there is no such program.
        UnknownNameError: if there is no such card.
    """
    if not program or (program[0] != "-m" and not Path(program[0]).is_file()):
        raise VirtualDeviceError(f"there is no program {program[0] if program else ''!r}")
    device = Device(gpu=gpu, count=gpus, total_bytes=budget_bytes, context_bytes=context_bytes, trace=trace)
    with environment(device, os.environ) as variables:
        file = Path(variables[LEDGER]).with_name("report.json")
        wanted = "" if snapshot is None else str(Path(snapshot).resolve())
        command = [sys.executable, "-m", "gpumem.virtual.child", str(file), wanted, *program]
        code = _wait(subprocess.Popen(command, env=variables))
        if file.exists():
            report = RunReport.from_json(file.read_text(encoding="utf-8"))
        else:
            report = RunReport(gpu=gpu, torch=installed.torch().version, exit_code=code, outcome="died")
        processes, totals = ledger.read(Path(variables[LEDGER]))
        return replace(report, processes=processes, totals=totals)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Ctrl-C reaches the child through the terminal; it decides what to do about it, and is waited for."""
    if threading.current_thread() is not threading.main_thread():
        return child.wait()
    # The child has been started with the signal as it was.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return child.wait()
    finally:
        signal.signal(signal.SIGINT, before)
