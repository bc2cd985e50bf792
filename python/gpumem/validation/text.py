"""A validation as text: predicted beside measured, the verdict, and why they differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpumem.render import WIDTH, bullets, plain_table, to_text
from gpumem.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from gpumem.validation.result import Validation


def validation_text(validation: Validation, *, title: str = "", width: int = WIDTH, color: bool = False) -> str:
    """Write a validation for people.

    Args:
        validation: The validation.
        title: Name of the model; the validation's own when empty.
        width: Columns to use.
        color: Whether to use terminal colours.
    """
    parts: list[RenderableType] = [_heading(validation, title), "", *_verdict(validation), _quantities(validation)]
    if validation.measured.steps:
        parts.append(_steps(validation))
    parts += bullets("Differences", list(_causes(validation)))
    parts += bullets("Notes", list(validation.notes))
    return to_text(parts, width, color)


def _heading(validation: Validation, title: str) -> RenderableType:
    from rich.text import Text

    report, device = validation.predicted.to_dict(), validation.device
    loop = [report["mode"], report["precision"]]
    if report["mode"] == "train":
        loop.append(report["optimizer"])
    if validation.plan is not None:
        loop.append(f"{len(validation.plan.regions)} regions checkpointed")
    text = Text(f"{title or validation.model}, batch {report['batch']}", style="bold")
    text.append(f"  {' · '.join(loop)}\n", style="not bold")
    text.append(f"input {report['input']}\n", style="not bold dim")
    driver = f" · driver {device.driver}" if device.driver else ""
    text.append(f"{device.on} ({device.name}) · torch {device.torch}{driver}", style="not bold dim")
    return text


def _verdict(validation: Validation) -> Iterator[RenderableType]:
    from rich.text import Text

    measured = validation.measured
    limit = validation.budget_bytes
    within = "" if limit is None else f" within {format_bytes(limit)} ({limit:,} bytes)"
    if measured.ran:
        ended = f"it ran{within}; predicted and measured: {validation.verdict}"
    else:
        where = f" in {measured.ended_in}" if measured.ended_in else ""
        ended = f"{measured.outcome}{where}{within}"
        if measured.outcome == "out of memory":
            ended += ", as predicted" if validation.predicted.fits is False else ", predicted to fit"
    word, style = ("Confirmed", "bold green") if validation.confirmed else ("Not confirmed", "bold red")
    yield Text(f"{word}: {ended}", style=style)
    if validation.bracket is not None:
        yield Text(f"Largest batch: {validation.bracket.text()}")
    if measured.message:
        yield Text(measured.message)


def _quantities(validation: Validation) -> Table:
    table = plain_table("peak", ">predicted", ">low", ">high", ">measured", ">difference, bytes", "")
    for row in validation.differences:
        ends = ["", "exact"] if row.low == row.high else [format_bytes(row.low), format_bytes(row.high)]
        status = row.status if validation.ran else ""
        table.add_row(
            row.quantity,
            format_bytes(row.likely),
            *ends,
            format_bytes(row.measured),
            f"{row.difference_bytes:+,}" if row.difference_bytes else "0",
            status,
        )
    return table


def _steps(validation: Validation) -> Table:
    timed = any(step.seconds is not None for step in validation.measured.steps)
    table = plain_table(
        "measured", ">requested", ">allocated", ">reserved", ">context, libraries", *([">time"] if timed else [])
    )
    for step in validation.measured.steps:
        sizes = (step.requested_bytes, step.allocated_bytes, step.reserved_bytes, step.outside_bytes)
        time = [] if not timed else ["" if step.seconds is None else f"{1000 * step.seconds:,.1f} ms"]
        table.add_row(step.name, *map(format_bytes, sizes), *time)
    return table


def _causes(validation: Validation) -> Iterator[str]:
    """Each cause once, with the quantities it is for."""
    named: dict[str, list[str]] = {}
    for row in validation.differences:
        if row.cause and validation.ran:
            named.setdefault(row.cause, []).append(row.quantity)
    for cause, quantities in named.items():
        yield f"{', '.join(quantities)}: {cause}"
    if validation.requests and not any(cause.startswith(validation.requests) for cause in named):
        yield validation.requests
