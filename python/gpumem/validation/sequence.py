"""Which requests differ: the predicted ones beside PyTorch's, in order, so that a difference has a cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpumem._core import ModelSpec
from gpumem.units import format_bytes

# Requests compared after a difference before the two sides count as together again (fewer where nothing else is alike,
# as between convolutions that all have another workspace), and how far that is looked for.
_TOGETHER = (4, 2)
_WINDOW = 12
# The fewest first, and one on either side (another size) before two on one side.
_STEPS = tuple(
    (ours, total - ours)
    for total in range(1, _WINDOW + 1)
    for ours in sorted(range(total + 1), key=lambda number, total=total: abs(2 * number - total))  # type: ignore[misc]
)
_OPS_NAMED = 3
_REQUEST, _MARK = 0, 2
_END_OF_STEP = 4


@dataclass(frozen=True)
class Request:
    """One predicted allocation: its size and the operation that makes it."""

    size_bytes: int
    op: str


@dataclass(frozen=True)
class Requests:
    """What came of the comparison.

    Attributes:
        predicted: How many were predicted.
        measured: How many there were.
        differing: Those that differ, by operation: how many, and bytes measured less bytes predicted.
        parted: Number of the request from which on nothing fits together any more, or None.
    """

    predicted: int
    measured: int
    differing: dict[str, tuple[int, int]]
    parted: int | None

    @property
    def equal(self) -> bool:
        """Whether every request is as predicted."""
        return not self.differing and self.parted is None

    def text(self) -> str:
        """One sentence."""
        if self.equal:
            return f"all {self.measured:,} requests are as predicted, in order"
        count = sum(number for number, _ in self.differing.values())
        named = sorted(self.differing.items(), key=lambda item: -item[1][0])
        ops = ", ".join(
            f"{number} of {op} ({'+' if more >= 0 else '-'}{format_bytes(abs(more))} in all)"
            for op, (number, more) in named[:_OPS_NAMED]
        )
        rest = f" and {len(named) - _OPS_NAMED} other operations" if len(named) > _OPS_NAMED else ""
        text = f"{count:,} of {self.measured:,} requests differ from the predicted {self.predicted:,}: {ops}{rest}"
        if self.parted is None:
            return text
        parted = f"from request {self.parted + 1:,} on it is another sequence"
        return f"{text}; {parted}" if count else parted


def predicted_requests(rows: Sequence[tuple[int, ...]], spec: ModelSpec, steps: int) -> list[Request]:
    """Requests of the setup and the first `steps` steps of `ModelSpec.timeline`."""
    ops, found, ended = spec.ops, [], 0
    for row in rows:
        if row[0] == _REQUEST:
            found.append(Request(row[2], ops[row[3]]))
        elif row[0] == _MARK and row[1] == _END_OF_STEP:
            ended += 1
            if ended == steps:
                break
    return found


def compare_requests(predicted: Sequence[Request], measured: Sequence[int], *, whole: bool = True) -> Requests:
    """Walk along both and find what is different.

    Args:
        predicted: From `predicted_requests`.
        measured: Sizes of the requests that were made.
        whole: Whether the run came to its end; else only what it got to is compared.
    """
    counts: Counter[str] = Counter()
    more: Counter[str] = Counter()
    sizes = [request.size_bytes for request in predicted]
    i = j = 0
    parted = None
    while j < len(measured) or (whole and i < len(sizes)):
        if i < len(sizes) and j < len(measured) and sizes[i] == measured[j]:
            i, j = i + 1, j + 1
            continue
        skipped = _resume(sizes, measured, i, j)
        if skipped is None:
            # A run that was stopped may have been stopped at a difference.
            parted = j if whole or len(measured) - j > _WINDOW else None
            break
        ours, theirs = skipped
        # A request that was not predicted belongs to the operation before it.
        op = predicted[i].op if ours else predicted[max(0, i - 1)].op if predicted else "nothing"
        counts[op] += max(ours, theirs)
        more[op] += sum(measured[j : j + theirs]) - sum(sizes[i : i + ours])
        i, j = i + ours, j + theirs
    return Requests(len(sizes), len(measured), {op: (counts[op], more[op]) for op in counts}, parted)


def _resume(sizes: Sequence[int], measured: Sequence[int], i: int, j: int) -> tuple[int, int] | None:
    """How many to leave out on either side, the fewest in all, so that both go on alike; None if nothing does."""
    for together in _TOGETHER:
        for ours, theirs in _STEPS:
            a, b = i + ours, j + theirs
            if a > len(sizes) or b > len(measured):
                continue
            mine = sizes[a : a + together]
            if list(mine) == list(measured[b : b + together]) and (mine or (a == len(sizes) and b == len(measured))):
                return ours, theirs
    return None
