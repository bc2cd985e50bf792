"""Starts the process on the device, asks it, and ends it: whatever happens there is an answer here."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, final

from gpumem.errors import ValidationError
from gpumem.validation.job import Package
from gpumem.validation.measurement import DeviceFacts, Measurement
from gpumem.validation.place import Place
from gpumem.virtual.environment import Device, environment

START_SECONDS = 180.0
NESTED = "GPUMEM_VALIDATION_CHILD"
"""Set in the process on the device: a program that is loaded there does not start another."""

_BOOT = (
    "import json, sys; on, index, virtual, lifeline, sys.path[:] = json.loads(sys.argv.pop()); "
    "from gpumem.validation.child import serve; serve(on, index, virtual, lifeline)"
)
_TAIL_BYTES = 1500
_ALLOC_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@final
class Child:
    """A process on a device; a context manager.

    Args:
        place: The device.
        virtual: The virtual device where `place` is one.
        alloc_conf: Configuration of PyTorch's allocator, or an empty string.

    Raises:
        ValidationError: no such device, or PyTorch does not start on it.
        VirtualDeviceError: the virtual device cannot be used here.
    """

    def __init__(self, place: Place, virtual: Device | None, alloc_conf: str) -> None:
        self._stack = contextlib.ExitStack()
        self.spoiled = False
        with contextlib.ExitStack() as stack:
            variables = dict(os.environ)
            if virtual is not None:
                variables = stack.enter_context(environment(virtual, variables))
            for name in _ALLOC_CONF:
                variables.pop(name, None)
            if alloc_conf:
                variables[_ALLOC_CONF[0]] = alloc_conf
            variables[NESTED] = "1"
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpumem-validate-")))
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            self._said_before_bytes = 0
            self._process = self._start(place, variables, stack)
            stack.callback(self._end)
            self.facts, self.free_bytes = self._hello(place)
            self._stack = stack.pop_all()

    def _start(self, place: Place, variables: dict[str, str], stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
        inherited, kept = os.pipe()
        stack.callback(os.close, kept)
        try:
            arguments = json.dumps([place.text, place.index, place.gpu is not None, inherited, sys.path])
            return subprocess.Popen(
                [sys.executable, "-c", _BOOT, arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=variables,
                pass_fds=(inherited,),
                start_new_session=True,
            )
        finally:
            os.close(inherited)

    def _hello(self, place: Place) -> tuple[DeviceFacts, int]:
        try:
            hello = self._line(time.monotonic() + START_SECONDS)
        except TimeoutError:
            raise ValidationError(f"PyTorch does not start on {place.text} within {START_SECONDS:.0f} s") from None
        except EOFError:
            raise ValidationError(f"PyTorch does not start on {place.text}: {self._ending()}") from None
        if "error" in hello:
            raise ValidationError(
                f"there is no device {place.text}: {hello['error']}",
                "without a GPU, on='virtual:rtx3090' runs on a virtual one",
            )
        return DeviceFacts(**hello["facts"]), hello["free_bytes"]

    def run(
        self, package: Package, batch: int, allowed_bytes: int | None, seconds: float
    ) -> tuple[Measurement, list[int]]:
        """Run a job; never raises for what happens in it.

        Args:
            package: The job.
            batch: Batch size.
            allowed_bytes: What the allocator may take; None for all of the device.
            seconds: Time limit.

        Returns:
            The measurement, and every request (its bytes) in order, empty where the process ended.
        """
        (self._folder / "job").write_bytes(pickle.dumps(package))
        (self._folder / "answer").unlink(missing_ok=True)
        request = {"folder": str(self._folder), "batch": batch, "allowed_bytes": allowed_bytes}
        # Its size, not a place in it: the process writes where this end stands.
        self._said_before_bytes = os.fstat(self._errors.fileno()).st_size
        try:
            self._ask(request, seconds)
        except TimeoutError:
            self.spoiled = True
            return self._ended("timed out", f"no answer within {seconds:g} s", batch, allowed_bytes), []
        except EOFError:
            self.spoiled = True
            return self._ended("crashed", self._ending(), batch, allowed_bytes), []
        answer = json.loads((self._folder / "answer").read_text(encoding="utf-8"))
        self.spoiled = not answer["clean"]
        if "error" in answer:
            return self._ended("failed", answer["error"], batch, allowed_bytes), []
        return Measurement.from_dict(answer["measurement"]), answer["requests"]

    def _ask(self, request: dict[str, Any], seconds: float) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        self._line(time.monotonic() + seconds)

    def _ended(self, outcome: str, message: str, batch: int, allowed_bytes: int | None) -> Measurement:
        place = self._folder / "place"
        where = place.read_text(encoding="utf-8", errors="replace") if place.exists() else ""
        return Measurement(outcome=outcome, message=message, ended_in=where, batch=batch, allowed_bytes=allowed_bytes)

    def _line(self, until: float) -> dict[str, Any]:
        """The next answer.

        Raises:
            TimeoutError: there is none in time.
            EOFError: the process has ended.
        """
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise TimeoutError
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            self._process.wait()
            raise EOFError
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ending(self) -> str:
        """How the process ended, and the last that it said in this run."""
        code = self._process.returncode
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._said_before_bytes, size - _TAIL_BYTES))
        said = self._errors.read().decode(errors="replace").strip()
        return f"{how}; it said last:\n{said}" if said else how

    def _end(self) -> None:
        # With all that it started: it is the leader of a session of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """End the process and remove its files."""
        self._stack.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
