"""Reports as text. Pure: takes a report, returns a string; the CLI and `print(report)` show the same."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gpumem.hardware import unconfirmed
from gpumem.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WIDTH = 100
# What the tables of a report need.
WIDTH_MIN = 80
_LAYERS_SHOWN = 8
_BAR_CELLS = 24
_QUANTITIES = (
    ("requested", "asked for by the program"),
    ("allocated", "max_memory_allocated()"),
    ("reserved", "max_memory_reserved()"),
    ("device", "whole process, as nvidia-smi shows it"),
)


class HasDict(Protocol):
    """Anything with the `to_dict` of `gpumem.Report`."""

    def to_dict(self) -> Any:
        """The report as plain data."""


def report_text(
    report: HasDict | Mapping[str, Any],
    *,
    title: str = "",
    notes: Sequence[str] = (),
    width: int = WIDTH,
    color: bool = False,
) -> str:
    """Write a report for people.

    Args:
        report: A `gpumem.Report`, or its `to_dict()`.
        title: Name of the model; the report's own (the class) when empty.
        notes: Assumptions made before the report, shown with its own.
        width: Columns to use.
        color: Whether to use terminal colours; the text is complete without them.
    """
    data = report if isinstance(report, Mapping) else report.to_dict()
    parts: list[RenderableType] = [
        _heading(data, title),
        "",
        *verdict(data),
        _quantities(data),
        _breakdown(data),
        *_layers(data),
        _phases(data),
        *bullets("Assumed", [*notes, *data["assumptions"]]),
        *_unverified(data["unsupported"]),
        *bullets("Evidence", [text] if (text := unconfirmed(data["gpu"])) else []),
    ]
    return to_text(parts, width, color)


def gpus_text(profiles: Iterable[Any], *, width: int = WIDTH, color: bool = False) -> str:
    """Write the table of GPU profiles; each is a `gpumem.GpuProfile`."""
    table = plain_table("GPU", "device name", ">capability", ">SMs", ">memory", ">bytes", "from")
    for gpu in profiles:
        major, minor = gpu.capability
        table.add_row(
            gpu.name,
            gpu.torch_name,
            f"{major}.{minor}",
            str(gpu.sm_count),
            format_bytes(gpu.total_bytes),
            f"{gpu.total_bytes:,}",
            "a card" if gpu.total_bytes_measured else "spec",
        )
    return to_text([table], width, color)


def to_text(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    """Write these parts one below the other, without trailing spaces."""
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join(line for before, line in zip(["", *lines], lines, strict=False) if line or before)


def plain_table(*columns: str, title: str = "") -> Table:
    """A borderless table; a column name with `>` in front is right-aligned."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="fold",
        )
    return table


def _heading(data: Mapping[str, Any], title: str) -> RenderableType:
    from rich.text import Text

    loop = [data["mode"], data["precision"]]
    if data["mode"] == "train":
        loop.append(data["optimizer"])
    text = Text(f"{title or data['model']}, batch {data['batch']}", style="bold")
    text.append(f"  {' · '.join(loop)}\n", style="not bold")
    text.append(f"input {data['input']}", style="not bold dim")
    if data["mode"] == "train":
        text.append(f" · loss: {data['criterion']}", style="not bold dim")
    text.append(f"\n{data['gpu']} · {data['stack']}", style="not bold dim")
    if data["alloc_conf"]:
        text.append(f" · {data['alloc_conf']}", style="not bold dim")
    return text


def verdict(data: Mapping[str, Any]) -> list[RenderableType]:
    """The line that says whether it fits, and where it stops if not."""
    from rich.text import Text

    if data["budget_bytes"] is None:
        return []
    limit = f"{format_bytes(data['budget_bytes'])} ({data['budget_bytes']:,} bytes)"
    need = data["device_peak"]["high"]
    if data["fits"]:
        line = f"Fits in {limit}: needs at most {format_bytes(need)}"
        if need > data["budget_bytes"]:
            line = (
                f"Fits in {limit} because the allocator gives cached segments back at the limit "
                f"(without one: up to {format_bytes(need)})"
            )
        return [Text(line, style="bold green")]
    text = Text(f"Does not fit in {limit}: may need {format_bytes(need)}", style="bold red")
    stopped = data["out_of_memory"]
    if stopped is not None:
        where = f" in {stopped['layer']}" if stopped["layer"] else ""
        text.append(
            f"\nstops at step {stopped['step'] + 1}, {stopped['phase']}{where}: {stopped['op']} asks for "
            f"{format_bytes(stopped['requested_bytes'])}",
            style="not bold",
        )
    return [text]


def _quantities(data: Mapping[str, Any]) -> Table:
    table = plain_table("peak", ">likely", ">low", ">high", "meaning")
    for name, meaning in _QUANTITIES:
        peak = data[f"{name}_peak"]
        ends = [format_bytes(peak[end]) for end in ("likely", "low", "high")]
        if peak["low"] == peak["high"]:
            ends[1:] = ["", "exact"]
        table.add_row(name, *ends, meaning)
    return table


def _breakdown(data: Mapping[str, Any]) -> Table:
    held = sorted(((size, name) for name, size in data["breakdown"].items() if size), reverse=True)
    total = sum(size for size, _ in held) or 1
    table = plain_table(
        "category", ">bytes", ">share", "", title=f"At the peak of allocated bytes ({data['peak_phase']})"
    )
    for size, name in held:
        bar = "█" * round(_BAR_CELLS * size / total)
        table.add_row(name, format_bytes(size), f"{100 * size / total:.1f} %", bar)
    return table


def _layers(data: Mapping[str, Any]) -> list[RenderableType]:
    layers = data["layers"]
    if not layers:
        return []
    table = plain_table("layer", "kind", ">bytes", "of which", title="Layers that hold most of it")
    for layer in layers[:_LAYERS_SHOWN]:
        parts = sorted(((size, name) for name, size in layer["requested_bytes"].items() if size), reverse=True)
        table.add_row(
            layer["path"] or "(model)",
            layer["kind"],
            format_bytes(layer["total_bytes"]),
            ", ".join(f"{name} {format_bytes(size)}" for size, name in parts),
        )
    rest = layers[_LAYERS_SHOWN:]
    if rest:
        table.add_row(f"{len(rest)} others", "", format_bytes(sum(layer["total_bytes"] for layer in rest)), "")
    return [table]


def _phases(data: Mapping[str, Any]) -> Table:
    last = max(row["step"] for row in data["phases"])
    table = plain_table("phase", ">requested", ">allocated", ">reserved", title="Peak of each phase in the last step")
    for row in data["phases"]:
        if row["step"] == last:
            sizes = [format_bytes(row[f"{name}_bytes"]) for name in ("requested", "allocated", "reserved")]
            table.add_row(row["phase"], *sizes)
    return table


def _unverified(ops: Sequence[str]) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    if not ops:
        return []
    title = f"{len(ops)} operations were never compared with CUDA; their bytes may be off"
    return ["", Text(title, style="bold"), Padding(Text(", ".join(ops)), (0, 0, 0, 1))]


def bullets(title: str, lines: Sequence[str]) -> list[RenderableType]:
    """A list below a title; nothing without lines."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    if not lines:
        return []
    rows = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        rows.add_row("-", Text(line))
    return ["", Text(title, style="bold"), Padding(rows, (0, 0, 0, 1))]
