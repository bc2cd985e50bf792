"""The model that a command names, and how answers about it are shown."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from typing import Any

import typer

import gpumem
from gpumem import api
from gpumem.cli.progress import progress
from gpumem.render import WIDTH, WIDTH_MIN, report_text
from gpumem.text import input_from_text


@dataclass(frozen=True)
class Named:
    """The model of a command line.

    Attributes:
        name: As it was typed.
        description: What was built.
        notes: What was assumed in building it.
        model: The module.
        input: Description of its input, or None.
        loop: Keywords of `gpumem.extract`.
    """

    name: str
    description: str
    notes: list[str]
    model: Any
    input: Any
    loop: dict[str, Any]

    def estimate(self, batch: int, target: dict[str, Any]) -> gpumem.Report:
        """See `gpumem.estimate`."""
        with progress(f"tracing {self.description}"):
            return api.estimate(self.model, self.input, batch=batch, **self.loop, **target)

    def plan(self, target: dict[str, Any], **axes: Any) -> gpumem.Plan:
        """See `gpumem.plan`."""
        loop = {name: value for name, value in self.loop.items() if name not in ("mode", "precision")}
        with progress(f"planning {self.description}"):
            return api.plan(self.model, self.input, **axes, **loop, **target)

    def front(self, target: dict[str, Any], **axes: Any) -> gpumem.Front:
        """See `gpumem.pareto`."""
        loop = {name: value for name, value in self.loop.items() if name != "mode"}
        with progress(f"planning {self.description}"):
            return api.pareto(self.model, self.input, **axes, **loop, **target)

    def largest(self, target: dict[str, Any]) -> tuple[int, gpumem.Report]:
        """See `gpumem.api.largest`."""
        with progress(f"tracing {self.description}"):
            return api.largest(self.model, self.input, **self.loop, **target)


def import_from_here() -> None:
    """Factories in the current folder can be imported, as with `python -m`."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def named_model(name: str, input_text: str | None, loop: dict[str, Any]) -> Named:
    """Build the model `name`, without weights where its library allows it."""
    from gpumem.sources import resolve

    import_from_here()
    with api.needing_torch():
        given = None if input_text is None else input_from_text(input_text)
    with progress(f"building {name}"), api.needing_torch():
        source = resolve(name, mode=loop["mode"], input=given)
    return Named(name, source.description, source.assumptions, source.model, source.input, loop)


def show(text: str) -> None:
    """Print an answer."""
    typer.echo(text)


def screen(least: int = WIDTH_MIN) -> dict[str, Any]:
    """Colours and width of what stdout is; in a terminal that is too narrow for a table, the terminal breaks lines."""
    if not sys.stdout.isatty():
        return {"color": False, "width": WIDTH}
    return {"color": True, "width": max(least, min(shutil.get_terminal_size().columns, 120))}


def show_report(named: Named, report: gpumem.Report) -> None:
    """Print a report for people."""
    show(report_text(report, title=named.description, notes=named.notes, **screen()))


def show_front(named: Named, target: dict[str, Any], batch: int | None, *, as_json: bool) -> None:
    """Find and print a front."""
    from gpumem.planning.front_text import front_text

    found = named.front(target, batch=batch)
    if as_json:
        show_json(named, front=json.loads(found.to_json()))
    else:
        show(front_text(found, title=named.description, notes=named.notes, **screen()))


def show_json(named: Named, **answer: Any) -> None:
    """Print an answer for programs."""
    show(json.dumps({"model": named.name, "description": named.description, "notes": named.notes, **answer}))
