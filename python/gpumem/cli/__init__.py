"""The command `gpumem`. Data goes to stdout, everything else to stderr; exit codes: 0 fits, 1 does not fit, 2 error."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from gpumem.errors import GpumemError

EXIT_FITS = 0
EXIT_DOES_NOT_FIT = 1
EXIT_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: Arguments after the program's name; those of the process when None.
    """
    from gpumem.cli.commands import Session, app

    session = Session()
    try:
        app(args=None if arguments is None else list(arguments), prog_name="gpumem", obj=session)
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else EXIT_ERROR
    except GpumemError as error:
        if session.show_traceback:
            traceback.print_exc()
        else:
            print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except Exception:
        # Not the user's mistake: a bug report needs the traceback. Python's own exit code would mean "does not fit".
        traceback.print_exc()
        return EXIT_ERROR
    return EXIT_FITS
