"""A plan as text: what to change, what it needs, what it costs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpumem.render import WIDTH, bullets, plain_table, to_text, verdict
from gpumem.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpumem.planning.plan import Plan

_INDEX = re.compile(r"\d+")


def plan_text(
    plan: Plan, *, title: str = "", notes: Sequence[str] = (), width: int = WIDTH, color: bool = False
) -> str:
    """Write a plan for people.

    Args:
        plan: The plan.
        title: Name of the model; the plan's own (the class) when empty.
        notes: Assumptions made before the plan, shown with those of its report.
        width: Columns to use.
        color: Whether to use terminal colours.
    """
    from rich.text import Text

    report = plan.report.to_dict()
    steps = f" x {plan.accumulate} micro-batches" if plan.accumulate > 1 else ""
    heading = Text(
        f"{title or plan.model}: batch {plan.batch}{steps}, {plan.precision}, {plan.optimizer}", style="bold"
    )
    heading.append(f"\n{plan.gpu} · {report['stack']} · input {report['input']}", style="not bold dim")
    parts: list[RenderableType] = [
        heading,
        "",
        *verdict(report),
        *_changes(plan),
        "",
        Text(_cost(plan)),
        *_others(plan),
        *bullets("Assumed", [*notes, *plan.notes, *report["assumptions"]]),
    ]
    return to_text(parts, width, color)


def _changes(plan: Plan) -> Iterator[RenderableType]:
    from rich.text import Text

    yield ""
    if not plan.regions:
        yield Text("Checkpoint nothing: it fits as it is.")
    else:
        yield Text(f"Checkpoint {len(plan.regions)} of {plan.region_count} regions:")
        for names, option in grouped(plan.regions):
            yield Text(f"  {names}" + ("" if option == "checkpoint" else f"  ({option})"))
    if plan.caches_off:
        yield Text("Train with use_cache=False: key-value caches are filled and never read.")
    if plan.step_in_backward:
        yield Text("Give each parameter an optimizer of its own that steps in the backward pass (foreach=False).")
    if plan.channels_last:
        yield Text("Model and image inputs in torch.channels_last.")
    if plan.zero_grad == "zero":
        yield Text("Zero the gradients in place: optimizer.zero_grad(set_to_none=False).")
    if plan.regions or plan.caches_off or plan.step_in_backward:
        yield Text("plan.apply(model) does it; plan.code(), or `gpumem plan --code`, prints it.", style="dim")


def _cost(plan: Plan) -> str:
    if not plan.regions:
        return "No recomputation."
    text = f"Recomputation: {100 * plan.overhead:.1f} % of the step by the roofline of {plan.gpu}"
    gap = plan.recompute_seconds - plan.recompute_bound_seconds
    if gap <= 0:
        return f"{text}, the least that any of these plans can have."
    share = 100 * gap / plan.step_seconds
    return f"{text}; no plan can have more than {share:.1f} points less."


def _others(plan: Plan) -> Iterator[RenderableType]:
    if not plan.alternatives:
        return
    table = plain_table("instead", ">batch", ">device", ">recomputation", title="")
    for other in plan.alternatives:
        # Beyond the limit the allocator gives cached segments back and gets through.
        size = format_bytes(min(other.device_peak_bytes, plan.budget_bytes))
        table.add_row(other.what, str(other.batch), size, f"{100 * other.overhead:.1f} %")
    yield ""
    yield table


def grouped(regions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Regions with one option, `layers.0`, `layers.1`, `layers.2` as `layers.0-2`."""
    for (shape, option), names in itertools.groupby(regions.items(), key=lambda item: (_shape(item[0]), item[1])):
        indices = [_last_index(name) for name, _ in names]
        for first, last in _runs(indices):
            label = shape if first is None else shape.replace("#", str(first) if first == last else f"{first}-{last}")
            yield label, option


def _shape(name: str) -> str:
    """The name with `#` for its last number, unless it is a run of members."""
    found = list(_INDEX.finditer(name))
    if not found or name.endswith("]"):
        return name
    at = found[-1]
    return f"{name[: at.start()]}#{name[at.end() :]}"


def _last_index(name: str) -> int | None:
    found = _INDEX.findall(name)
    return int(found[-1]) if found and not name.endswith("]") else None


def _runs(indices: list[int | None]) -> Iterator[tuple[int | None, int | None]]:
    start = previous = indices[0]
    for index in indices[1:]:
        if previous is None or index != previous + 1:
            yield start, previous
            start = index
        previous = index
    yield start, previous
