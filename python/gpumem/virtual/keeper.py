"""Cleans up after a caller that was killed: `python keeper.py FOLDER`, run as a file since it needs nothing of gpumem.

It waits for the end of its standard input, which the caller holds open. If FOLDER is still there then, the caller had
no chance to remove it: the processes that run with FOLDER in their environment are ended, and it is removed.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

_ROUNDS = 10
"""Processes may be starting others while they are looked for."""


def main() -> None:
    """Wait, and clean up if need be."""
    folder = sys.argv[1]
    sys.stdin.buffer.read()
    if not Path(folder).exists():
        return
    for _ in range(_ROUNDS):
        found = _processes(folder.encode())
        for process in found:
            _end(process)
        if not found:
            break
    shutil.rmtree(folder, ignore_errors=True)


def _processes(folder: bytes) -> list[int]:
    """Processes whose environment names the folder."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                variables = Path(entry.path, "environ").read_bytes()
            except OSError:
                # It has ended, or is somebody else's.
                continue
            if folder + b"/" in variables:
                found.append(int(entry.name))
    return found


def _end(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
