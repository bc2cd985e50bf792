"""Ctrl-C during a trace: taken between two operations.

Python runs signal handlers anywhere, also inside the callbacks that note a storage's death. An exception raised there
is printed and dropped, and with it the note: the trace would go on and be wrong.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from gpumem.extraction.recorder import Recorder


@contextlib.contextmanager
def interrupts_between_operations(rec: Recorder) -> Iterator[None]:
    """While active, the first Ctrl-C waits for the recorder's next operation; a second one is taken at once.

    Elsewhere than in the main thread, or where SIGINT is ignored, nothing is changed.
    """
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def later(number: int, frame: FrameType | None) -> None:
        if rec.interrupt is not None:
            rec.interrupt = None
            before(number, frame)
        else:
            rec.interrupt = lambda: before(number, frame)

    signal.signal(signal.SIGINT, later)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    rec.take_interrupt()
