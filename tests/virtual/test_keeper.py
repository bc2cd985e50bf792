"""A caller that is killed leaves neither processes nor files behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Far more than is needed; a process that stays, stays for longer.
PATIENCE_SECONDS = 60.0

CALLER = """
import os, signal, subprocess, sys
# What `nohup` starts ignores it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from gpumem.virtual.environment import Device, environment
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
parent = [sys.executable, "-c", f"import subprocess, time; "
          f"print(subprocess.Popen({sleeper!r}, start_new_session=True).pid, flush=True); time.sleep(600)"]
with environment(Device(gpu="t4"), os.environ) as variables:
    with subprocess.Popen(parent, env=variables, stdout=subprocess.PIPE, text=True) as child:
        print(variables["TRITON_LIBCUDA_PATH"], child.pid, child.stdout.readline().strip(), flush=True)
        if sys.argv[1:]:
            child.kill()
        else:
            child.wait()
"""


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _start(*arguments: str) -> tuple[subprocess.Popen[str], Path, list[int]]:
    caller = subprocess.Popen([sys.executable, "-c", CALLER, *arguments], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    folder, *processes = caller.stdout.readline().split()
    return caller, Path(folder), [int(process) for process in processes]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_caller_leaves_nothing_behind(programs: Path, how: signal.Signals) -> None:
    caller, folder, processes = _start()
    with caller:
        assert folder.exists()
        assert all(map(_lives, processes))
        caller.send_signal(how)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and (folder.exists() or any(map(_lives, processes))):
        time.sleep(0.02)
    assert not folder.exists()
    assert not any(map(_lives, processes))


def test_a_caller_that_comes_to_its_end_removes_the_folder_and_ends_nobody(programs: Path) -> None:
    caller, folder, (child, sleeper) = _start("finish")
    with caller:
        pass
    try:
        assert caller.returncode == 0
        assert not folder.exists()
        assert not _lives(child)
        # What a program leaves running on purpose is its own affair.
        assert _lives(sleeper)
    finally:
        os.kill(sleeper, signal.SIGKILL)
