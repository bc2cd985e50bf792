"""The largest batch that runs within a limit, found by trying."""

from __future__ import annotations

from collections.abc import Callable

LARGEST = 1 << 14
_FULL = "out of memory"


def largest_batch(start: int, outcome: Callable[[int], str]) -> tuple[int | None, dict[int, str]]:
    """Double or halve from `start`, then bisect.

    Args:
        start: The first batch to try.
        outcome: Runs a batch; `ran`, `out of memory`, or another word for a run that says nothing.

    Returns:
        The largest batch that runs where the next one is out of memory (0 if not even one sample fits, None if a run
        said nothing or everything ran), and how each try ended.
    """
    tries: dict[int, str] = {}

    def runs(batch: int) -> bool | None:
        tries[batch] = outcome(batch)
        return {"ran": True, _FULL: False}.get(tries[batch])

    fitting, failing = 0, LARGEST + 1
    batch = start
    while fitting == 0 or failing > LARGEST:
        found = runs(batch)
        if found is None or batch >= LARGEST:
            return None, tries
        if found:
            fitting = batch
        else:
            failing = batch
        if failing == 1:
            return 0, tries
        if fitting and failing <= LARGEST:
            break
        batch = 2 * batch if found else max(1, batch // 2)
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        found = runs(middle)
        if found is None:
            return None, tries
        fitting, failing = (middle, failing) if found else (fitting, middle)
    return fitting, tries
