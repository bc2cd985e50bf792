"""The parent's side of a worker: asks, waits no longer than it may, and starts another when one is lost."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

REPOSITORY = Path(__file__).resolve().parents[2]
_TAIL_BYTES = 600


class LostError(Exception):
    """The worker ended or does not answer; the text says how."""


class OutOfTimeError(Exception):
    """The time of the whole recording is up."""


class Hands:
    """A worker, started when it is first needed.

    Args:
        deadline: `time.monotonic()` at which the recording has to end.
        task: `loops`, or `context` for a process that answers once.
        variables: More environment variables.
    """

    def __init__(self, deadline: float, task: str = "loops", variables: Mapping[str, str] | None = None) -> None:
        self._deadline, self._task = deadline, task
        self._variables = {**os.environ, **(variables or {})}
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: Any = None
        self._errors: Any = None

    def hello(self, seconds: float) -> dict[str, Any]:
        """Start a worker and return the first that it says.

        Raises:
            LostError, OutOfTimeError: see there.
        """
        self.close()
        theirs, lifeline = os.pipe()
        self._stack.callback(os.close, lifeline)
        mine, answers = os.pipe()
        self._answers = self._stack.enter_context(os.fdopen(mine, "rb"))
        self._errors = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu_truth.worker", str(answers), str(theirs), self._task],
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(answers, theirs),
                cwd=REPOSITORY,
                env={**self._variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        finally:
            os.close(theirs)
            os.close(answers)
        self._stack.callback(self._end)
        return self._line(seconds)

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """What a worker answers; one that leaves the device in use is ended.

        Raises:
            LostError, OutOfTimeError: see there.
        """
        if self._process is None:
            self.hello(seconds)
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._line(seconds)
        if not answer.get("clean"):
            self.close()
        return answer

    def _line(self, seconds: float) -> dict[str, Any]:
        until = min(self._deadline, time.monotonic() + seconds)
        ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            self.close()
            if until == self._deadline:
                raise OutOfTimeError
            raise LostError(f"timed out: no answer within {seconds:g} s")
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            how = self._ending()
            self.close()
            raise LostError(how)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ending(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        how = f"crashed: {signal.Signals(-code).name}" if code < 0 else f"crashed: exit code {code}"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL_BYTES))
        return f"{how}: {self._errors.read().decode(errors='replace').strip()}"

    def _end(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def close(self) -> None:
        """End the worker, if there is one."""
        self._stack.close()
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
