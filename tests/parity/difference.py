"""The first differences between two timelines, phase by phase, for people."""

from __future__ import annotations

import difflib

from tests.parity.timeline import Timeline, with_sorted_frees

_MOST_SIZES = 4_000


def differences(truth: Timeline, ours: Timeline, show: int) -> list[str]:
    """At most `show` descriptions: allocations that differ first, else frees at another place."""
    found: list[str] = []
    if [name for name, _ in truth.marks] != [name for name, _ in ours.marks]:
        return [f"phases differ: {truth.marks} / {ours.marks}"]
    at_truth = at_ours = 0
    for number, ((name, left), (_, right)) in enumerate(zip(truth.phases(), ours.phases(), strict=True)):
        sizes_left = [event for event in left if event >= 0]
        sizes_right = [event for event in right if event >= 0]
        if sizes_left != sizes_right:
            found += _sizes(truth, ours, sizes_left, sizes_right, at_truth, at_ours, f"{name}#{number}")
        if len(found) >= show:
            return found[:show]
        at_truth += len(sizes_left)
        at_ours += len(sizes_right)
    return found[:show] if found else _frees(truth, ours, show)


def _label(timeline: Timeline, index: int) -> str:
    return timeline.labels[index] if 0 <= index < len(timeline.labels) else ""


def _sizes(
    truth: Timeline, ours: Timeline, left: list[int], right: list[int], at_truth: int, at_ours: int, phase: str
) -> list[str]:
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    left, right = left[start : start + _MOST_SIZES], right[start : start + _MOST_SIZES]
    at_truth, at_ours = at_truth + start, at_ours + start
    found: list[str] = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        places = f"cuda allocations {at_truth + i1}..{at_truth + i2}, ours {at_ours + j1}..{at_ours + j2}"
        lines = [f"{phase}: {tag}; {places}; after ours {_label(ours, at_ours + j1 - 1)}"]
        lines += [f"    cuda {left[i]:>12,}  {_label(truth, at_truth + i)}" for i in range(i1, min(i2, i1 + 8))]
        lines += [f"    ours {right[j]:>12,}  {_label(ours, at_ours + j)}" for j in range(j1, min(j2, j1 + 8))]
        found.append("\n".join(lines))
    return found


def _frees(truth: Timeline, ours: Timeline, show: int) -> list[str]:
    """Allocations are equal: where does each free of theirs stand relative to ours?"""
    places_truth, places_ours = _free_places(truth), _free_places(ours)
    found: list[str] = []
    for index in sorted(
        places_truth.keys() | places_ours.keys(),
        key=lambda i: min(places_truth.get(i, 1 << 60), places_ours.get(i, 1 << 60)),
    ):
        theirs, mine = places_truth.get(index), places_ours.get(index)
        if theirs != mine and len(found) < show:
            sizes = ours.sizes()
            found.append(
                f"free of allocation {index} ({sizes[index]:,} bytes, {_label(ours, index)}):\n"
                f"    cuda {_place(truth, ours, theirs)}\n    ours {_place(ours, ours, mine)}"
            )
    return found


def _free_places(timeline: Timeline) -> dict[int, int]:
    places: dict[int, int] = {}
    allocations = 0
    for event in timeline.events:
        if event >= 0:
            allocations += 1
        else:
            places[-1 - event] = allocations
    return places


def _place(timeline: Timeline, labelled: Timeline, place: int | None) -> str:
    if place is None:
        return "never"
    return f"after {place - 1} ({_label(labelled, place - 1)}), before {place} ({_label(labelled, place)})"


def sequences_equal(truth: Timeline, ours: Timeline) -> bool:
    """Allocations and frees equal, the frees between two allocations as a set."""
    return with_sorted_frees(truth.events) == with_sorted_frees(ours.events)
