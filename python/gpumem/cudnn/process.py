"""One process that holds cuDNN (`child.py`), seen from outside."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpumem.cudnn.child import FAILED
from gpumem.cudnn.installed import InstalledCudnn
from gpumem.errors import CudnnError

START_SECONDS = 60.0
CALL_SECONDS = 60.0
"""Some plans are compiled while they are made, which takes seconds; more than this is a hang."""

_CHILD = Path(__file__).with_name("child.py")
# A preloaded library would come before cuDNN's own.
_REMOVED = ("LD_PRELOAD",)


class GoneError(Exception):
    """The process has died, or does not answer in time."""


class Process:
    """A process with cuDNN in it.

    Attributes:
        pid: Process that started it; after a fork it is not the child's.
        version: Of cuDNN, such as `9.24.0`.

    Raises:
        CudnnError: it does not start, or cuDNN cannot be loaded.
    """

    def __init__(self, found: InstalledCudnn) -> None:
        self.pid = os.getpid()
        if not sys.executable:
            raise CudnnError("cuDNN cannot be asked: it is not known which Python runs here")
        kept = {name: value for name, value in os.environ.items() if name not in _REMOVED}
        before = map(str, found.before)
        command = [sys.executable, "-I", "-S", str(_CHILD), str(found.device), str(found.library), *before]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=kept,
                start_new_session=True,
            )
        except OSError as error:
            raise CudnnError(f"cuDNN cannot be asked: {error}") from error
        self._unread = b""
        try:
            said = self.answer(START_SECONDS).split(maxsplit=1)
        except GoneError:
            said = [FAILED]
        if said[0] == FAILED:
            self.close()
            raise CudnnError(f"the installed cuDNN cannot be loaded: {said[1] if len(said) > 1 else 'it crashes'}")
        number = int(said[1])
        self.version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def ask(self, lines: Sequence[str]) -> None:
        """Write questions.

        Raises:
            GoneError: nobody reads them.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            self._process.stdin.flush()
        except OSError as error:
            raise GoneError from error

    def answer(self, seconds: float | None = None) -> str:
        """The next line, within `CALL_SECONDS` when nothing else is said.

        Raises:
            GoneError: there is none in time.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + (CALL_SECONDS if seconds is None else seconds)
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([descriptor], [], [], left)[0] or not (read := os.read(descriptor, 1 << 16)):
                raise GoneError
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
