"""How far a sweep is: one line on stderr, in a terminal, for what takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from gpumem.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

_DELAY_S = 1.0

OnProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is done (`tracing` or `evaluating`), how much of it, and how much there is."""


class Progress:
    """Tells how far a sweep is.

    Args:
        wanted: A function to be told, True for the terminal, False for none; None is True where stderr is a terminal.

    Raises:
        InputError: it is none of these.
    """

    def __init__(self, wanted: OnProgress | bool | None) -> None:
        if wanted is not None and not isinstance(wanted, bool) and not callable(wanted):
            raise InputError(f"progress must be a function, True or False, not {type(wanted).__name__}")
        self._tell = wanted if callable(wanted) else None
        self._shown = wanted is True or (wanted is None and sys.stderr.isatty())
        self._start = time.monotonic()
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def at(self, what: str, done: int, total: int) -> None:
        """So much of it is done."""
        if self._tell is not None:
            self._tell(what, done, total)
        elif self._shown and time.monotonic() - self._start > _DELAY_S:
            self._show(what, done, total)

    def _show(self, what: str, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.progress import TimeRemainingColumn as Remaining

        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total)
        self._bar.update(self._tasks[what], completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
