"""The command `gpumem`. Data goes to stdout, everything else to stderr; exit codes: 0 fits, 1 does not fit, 2 error."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence

from gpumem.errors import GpumemError

EXIT_FITS = 0
EXIT_DOES_NOT_FIT = 1
EXIT_ERROR = 2
# As a shell counts a process that a signal ended. Click's own code would be 1, which means "does not fit" here.
EXIT_INTERRUPTED = 128 + signal.SIGINT


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the program with `EXIT_INTERRUPTED` and without a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(signum: int, frame: object) -> None:
        print("interrupted", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _printable() -> None:
    """A terminal that cannot show a character gets another one, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: Arguments after the program's name; those of the process when None.
    """
    from gpumem.cli.commands import Session, app, keywords
    from gpumem.cli.spelling import error_text

    session = Session()
    _printable()
    try:
        with _interruptible():
            app(args=None if arguments is None else list(arguments), prog_name="gpumem", obj=session)
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else EXIT_ERROR
    except GpumemError as error:
        if session.show_traceback:
            traceback.print_exc()
        else:
            print(f"error: {error_text(error, keywords())}", file=sys.stderr)
        return EXIT_ERROR
    except Exception:
        # Not the user's mistake: a bug report needs the traceback. Python's own exit code would mean "does not fit".
        traceback.print_exc()
        return EXIT_ERROR
    return EXIT_FITS
