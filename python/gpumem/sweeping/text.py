"""A sweep as text: what was swept, how much of it fits, and the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem.render import WIDTH, bullets, plain_table, to_text
from gpumem.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpumem.sweeping.table import Sweep

_ROWS_SHOWN = 20
_ERRORS_SHOWN = 5
_NOTES_SHOWN = 12
_SHOWN = ("device_bytes_high", "fits", "checkpointed")


def sweep_text(sweep: Sweep, *, rows: int = _ROWS_SHOWN, width: int = WIDTH, color: bool = False) -> str:
    """Write a table for people.

    Args:
        sweep: The table.
        rows: How many are shown.
        width: Columns of the terminal.
        color: Whether to use terminal colours.
    """
    from rich.text import Text

    parts: list[RenderableType] = [Text(_counts(sweep), style="bold"), *_fixed(sweep)]
    if len(sweep):
        parts += ["", _table(sweep, rows)]
    if len(sweep) > rows:
        parts.append(Text(f"... and {len(sweep) - rows:,} rows more", style="dim"))
    parts += bullets("No answer", _errors(sweep))
    parts += bullets("Assumed", _notes(sweep))
    return to_text(parts, width, color)


def _counts(sweep: Sweep) -> str:
    fits = sweep["fits"]
    fit, known = int(np.ma.filled(fits, False).sum()), int((~np.ma.getmaskarray(fits)).sum())
    failed = sum(error is not None for error in sweep["error"])
    said = [f"{fit:,} fit", f"{known - fit:,} do not"] if known else []
    said += [f"{failed:,} have no answer"] if failed else []
    return f"{len(sweep):,} {'row' if len(sweep) == 1 else 'rows'}" + (f": {', '.join(said)}" if said else "")


def _varying(sweep: Sweep) -> list[str]:
    return [name for name in sweep.axes if len(sweep) == 0 or len(np.unique(sweep.codes(name))) > 1 or name == "model"]


def _fixed(sweep: Sweep) -> list[RenderableType]:
    from rich.text import Text

    varying = _varying(sweep)
    same = [f"{name} {_value(name, sweep[name][0])}" for name in sweep.axes if name not in varying]
    return [Text(" · ".join(same), style="dim")] if same else []


def _table(sweep: Sweep, rows: int) -> RenderableType:
    varying = _varying(sweep)
    answers = [name for name in _SHOWN if name in sweep.columns]
    names = {"device_bytes_high": "device, at most", "checkpointed": "checkpointed"}
    table = plain_table(
        *(f">{name}" if name == "batch" else name for name in varying), *(f">{names.get(n, n)}" for n in answers)
    )
    for number in range(min(rows, len(sweep))):
        row = sweep[number]
        table.add_row(*(_value(name, row[name]) for name in (*varying, *answers)))
    return table


def _value(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.startswith("device_bytes"):
        return format_bytes(value)
    if name == "fits":
        return "yes" if value else "no"
    return str(value)


def _errors(sweep: Sweep) -> list[str]:
    counts: dict[tuple[str, str], int] = {}
    for model, error in zip(sweep["model"], sweep["error"], strict=True):
        if error is not None:
            key = (model, error.splitlines()[0])
            counts[key] = counts.get(key, 0) + 1
    lines = [f"{model}, {count:,} rows: {error}" for (model, error), count in counts.items()]
    return _cut(lines, _ERRORS_SHOWN)


def _notes(sweep: Sweep) -> list[str]:
    """Each once, with the models that it is about unless it is about all."""
    about: dict[str, list[str]] = {}
    for model in dict.fromkeys(sweep["model"]):
        for note in sweep.assumptions.get(model, ()):
            about.setdefault(note, []).append(model)
    models = len(set(sweep["model"]))
    lines = [note if len(of) == models else f"{_cut_names(of)}: {note}" for note, of in about.items()]
    return _cut(lines, _NOTES_SHOWN)


def _cut_names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} others"


def _cut(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"{len(lines) - most} more, in the table"]
