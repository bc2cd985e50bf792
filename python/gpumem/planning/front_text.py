"""A front as text: a row for each plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpumem.planning.text import grouped
from gpumem.render import WIDTH, bullets, plain_table, to_text
from gpumem.units import format_bytes

if TYPE_CHECKING:
    from gpumem.planning.front import Front

_NAMES_SHOWN = 4


def front_text(
    front: Front, *, title: str = "", notes: Sequence[str] = (), width: int = WIDTH, color: bool = False
) -> str:
    """Write a front for people.

    Args:
        front: The front.
        title: Name of the model; the front's own (the class) when empty.
        notes: Assumptions made before, shown with its own.
        width: Columns to use.
        color: Whether to use terminal colours.
    """
    from rich.text import Text

    heading = Text(
        f"{title or front.model}: batch {front.batch}, {front.precision}, {front.optimizer}: {len(front)} plans, none "
        "better in both",
        style="bold",
    )
    heading.append(f"\n{front.gpu} · input {front.input} · {front.region_count} regions", style="not bold dim")
    table = plain_table(">device", ">recomputation", ">samples/s", "checkpoint")
    for point in front:
        names = [name for name, _ in grouped(point.regions)]
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        table.add_row(
            format_bytes(point.device_bytes),
            f"{100 * point.overhead:.1f} %",
            f"{point.samples_per_second:,.0f}",
            f"{', '.join(names[:_NAMES_SHOWN])}{more}" if names else "nothing",
        )
    footer = Text("Each was played within its bytes; times are the card's roofline, for comparing plans.", style="dim")
    return to_text([heading, "", table, footer, *bullets("Assumed", [*notes, *front.notes])], width, color)
