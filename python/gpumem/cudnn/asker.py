"""Questions to the process that holds cuDNN, and the answers that are known already."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Sequence

from gpumem.cudnn.child import FAILED, NO_PLAN
from gpumem.cudnn.installed import InstalledCudnn
from gpumem.cudnn.process import GoneError, Process
from gpumem.errors import CudnnError

CRASHES_MAX = 3
"""A call at which the process dies has no answer; so many of them and cuDNN is not asked again."""

ANSWERS_KEPT = 200_000
CALLS_AT_ONCE = 64
"""Few enough for a pipe to hold, so that neither side waits for the other."""

_NOT_SUPPORTED = "3"
"""`gpumem_vgpu_conv_workspace`: this cuDNN does not answer without a device."""

Call = tuple[int, ...]


class Asker:
    """Asks one installed cuDNN, from any thread; what it said is kept.

    The process is started by the first question that has no answer yet, ends by itself when nothing is asked for a
    while, and does not outlive its caller.
    """

    def __init__(self, found: InstalledCudnn) -> None:
        self._found = found
        self._lock = threading.RLock()
        self._process: Process | None = None
        self._version = ""
        self._known: dict[tuple[str, Call], int | None] = {}
        self._crashes = 0
        self._refusal: CudnnError | None = None

    def name(self) -> str:
        """cuDNN with its version, once it was asked something."""
        return f"cuDNN {self._version}".rstrip()

    def workspaces(self, gpu: str, calls: Sequence[Sequence[int]]) -> list[int | None]:
        """Workspace bytes of each call on a card; None where cuDNN has no plan.

        Args:
            gpu: Name of the card's profile.
            calls: The integers of the core's formula `conv_workspace`.

        Raises:
            CudnnError: it cannot be asked.
        """
        wanted = [tuple(call) for call in calls]
        with self._lock:
            unknown = [call for call in wanted if (gpu, call) not in self._known]
            if len(self._known) + len(unknown) > ANSWERS_KEPT:
                self._known.clear()
                unknown = wanted
            for first in range(0, len(unknown), CALLS_AT_ONCE):
                self._ask(gpu, unknown[first : first + CALLS_AT_ONCE])
            return [self._known[gpu, call] for call in wanted]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None and self._process.pid == os.getpid():
                self._process.close()
            self._process = None

    def _started(self) -> Process:
        if self._refusal is not None:
            raise self._refusal
        # After a fork the process belongs to the parent.
        if self._process is None or self._process.pid != os.getpid():
            self._process = Process(self._found)
            self._version = self._process.version
        return self._process

    def _ask(self, gpu: str, calls: list[Call]) -> None:
        """Learn the answers to calls that have none."""
        is_new = self._process is None
        try:
            while left := [call for call in calls if (gpu, call) not in self._known]:
                with contextlib.suppress(GoneError):
                    self._ask_process(gpu, left)
                    return
                self.close()
                # One that had been idle for long has ended by itself; a new one dies of the call.
                if is_new:
                    self._crashed_at(gpu, next(call for call in left if (gpu, call) not in self._known))
                is_new = True
        except CudnnError as error:
            # It would say the same again.
            self._refusal = error
            self.close()
            raise
        except BaseException:
            # Interrupted: what the process still answers would be taken for the answer to something else.
            self.close()
            raise

    def _ask_process(self, gpu: str, calls: list[Call]) -> None:
        cuda = self._found.cuda[0] * 1000 + self._found.cuda[1] * 10
        process = self._started()
        process.ask([f"{gpu} {cuda} {' '.join(map(str, call))}" for call in calls])
        for call in calls:
            self._known[gpu, call] = _bytes(process.answer())

    def _crashed_at(self, gpu: str, call: Call) -> None:
        self._known[gpu, call] = None
        self._crashes += 1
        if self._crashes >= CRASHES_MAX:
            raise CudnnError(f"the installed cuDNN crashed {self._crashes} times")


def _bytes(answer: str) -> int | None:
    if answer == f"{FAILED} {_NOT_SUPPORTED}":
        raise CudnnError("the installed cuDNN does not answer about a card that is not there (9.8 and later do)")
    return None if answer == NO_PLAN or answer.startswith(FAILED) else int(answer)


@functools.lru_cache(maxsize=1)
def asker_of(found: InstalledCudnn) -> Asker:
    """The one that asks this cuDNN."""
    asker = Asker(found)
    atexit.register(asker.close)
    return asker
