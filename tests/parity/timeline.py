"""Event lists in one form for both sides, and what is compared of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence


@dataclasses.dataclass
class Timeline:
    """Allocations and frees in order.

    Attributes:
        events: `size >= 0` is an allocation of that many requested bytes; `-1 - i` frees the i-th allocation.
        marks: `(name, position in events)` of each phase border.
        labels: For each allocation, who asked (op and layer, or C++ frames); may be empty.
    """

    events: list[int]
    marks: list[tuple[str, int]]
    labels: list[str] = dataclasses.field(default_factory=list)

    def trimmed(self) -> Timeline:
        """Without what follows the last mark (teardown)."""
        end = self.marks[-1][1] if self.marks else len(self.events)
        return Timeline(self.events[:end], self.marks, self.labels)

    def sizes(self) -> list[int]:
        """Requested bytes of each allocation."""
        return [event for event in self.events if event >= 0]

    def requested_peak_bytes(self) -> int:
        """Largest sum of live requested bytes."""
        sizes: list[int] = []
        live = peak = 0
        for event in self.events:
            if event >= 0:
                sizes.append(event)
                live += event
                peak = max(peak, live)
            else:
                live -= sizes[-1 - event]
        return peak

    def phases(self) -> list[tuple[str, list[int]]]:
        """Events of each phase: `setup` first, then one entry per mark but the last."""
        borders = [("setup", 0), *self.marks, ("teardown", len(self.events))]
        return [(name, self.events[at:end]) for (name, at), (_, end) in itertools.pairwise(borders)]

    def phase_peaks_bytes(self) -> list[tuple[str, int]]:
        """Largest live requested bytes within each phase."""
        sizes: list[int] = []
        live = 0
        peaks = []
        for name, events in self.phases():
            peak = live
            for event in events:
                if event >= 0:
                    sizes.append(event)
                    live += event
                    peak = max(peak, live)
                else:
                    live -= sizes[-1 - event]
            peaks.append((name, peak))
        return peaks


def with_sorted_frees(events: Sequence[int]) -> list[int]:
    """Frees between two allocations in one canonical order.

    At autocast exit C++ frees the cast weights in the order of a hash map keyed by addresses, which differs from
    process to process; within a run of frees the order has no effect on what the allocator does next.
    """
    ordered: list[int] = []
    run: list[int] = []
    for event in events:
        if event < 0:
            run.append(event)
        else:
            ordered += sorted(run, reverse=True)
            run.clear()
            ordered.append(event)
    return ordered + sorted(run, reverse=True)
