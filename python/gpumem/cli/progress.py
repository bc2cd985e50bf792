"""A spinner on stderr for work that takes longer than a second."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

DELAY_S = 1.0


@contextlib.contextmanager
def progress(message: str, delay_s: float = DELAY_S) -> Iterator[None]:
    """Show `message` on stderr once the block has run for `delay_s`; nothing if stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    status = Console(stderr=True).status(message)
    timer = threading.Timer(delay_s, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # The timer may be starting the spinner right now.
        timer.join()
        status.stop()
