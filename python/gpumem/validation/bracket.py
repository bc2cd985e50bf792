"""The largest batch in fact: the predicted one runs, the next one does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpumem.validation.measurement import Measurement

_TRIES = 24
_FULL = "out of memory"


@dataclass(frozen=True)
class Bracket:
    """What the runs around the predicted batch say.

    Attributes:
        predicted: The predicted largest batch.
        tries: Batch sizes that were run, and how each ended.
    """

    predicted: int
    tries: tuple[tuple[int, str], ...]

    @property
    def largest(self) -> int | None:
        """The largest batch that ran where the next one is out of memory; None if it was not found."""
        outcomes = dict(self.tries)
        found = [size for size, how in outcomes.items() if how == "ran" and outcomes.get(size + 1) == _FULL]
        if outcomes.get(1) == _FULL:
            return 0
        return max(found, default=None)

    @property
    def exact(self) -> bool:
        """Whether the predicted batch runs and the next one is out of memory."""
        return self.largest == self.predicted

    @property
    def safe(self) -> bool:
        """Whether the predicted batch runs."""
        return dict(self.tries).get(self.predicted) == "ran"

    def text(self) -> str:
        """One sentence."""
        if self.exact:
            return f"batch {self.predicted} runs, batch {self.predicted + 1} is out of memory: the largest batch"
        runs = "runs" if self.safe else dict(self.tries)[self.predicted]
        if self.largest is None:
            others = ", ".join(f"{size} {how}" for size, how in self.tries if size != self.predicted)
            return f"batch {self.predicted}: {runs}; the largest was not found ({others or 'nothing else was tried'})"
        return f"batch {self.predicted}: {runs}; the largest batch that runs is {self.largest}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "predicted": self.predicted,
            "largest": self.largest,
            "exact": self.exact,
            "tries": [list(one) for one in self.tries],
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Bracket:
        """Inverse of `to_dict`."""
        return cls(fields["predicted"], tuple((size, how) for size, how in fields["tries"]))


def bracket_of(first: Measurement, run: Callable[[int], Measurement]) -> Bracket:
    """Run batch sizes around a predicted one until the border is found.

    Args:
        first: The run of the predicted batch.
        run: Runs a batch size.
    """
    outcomes = {first.batch: first.outcome}

    def outcome(batch: int) -> str:
        if batch not in outcomes:
            outcomes[batch] = run(batch).outcome
        return outcomes[batch]

    fitting, failing = _surround(first, outcome)
    while fitting is not None and failing is not None and failing - fitting > 1 and len(outcomes) < _TRIES:
        middle = (fitting + failing) // 2
        how = outcome(middle)
        if how == "ran":
            fitting = middle
        elif how == _FULL:
            failing = middle
        else:
            break
    return Bracket(first.batch, tuple(sorted(outcomes.items())))


def _surround(first: Measurement, outcome: Callable[[int], str]) -> tuple[int | None, int | None]:
    """A batch that runs and a larger one that does not, by steps that double."""
    batch, step = first.batch, 1
    if first.outcome not in ("ran", _FULL):
        return None, None
    up = first.outcome == "ran"
    for _ in range(_TRIES):
        at = batch + step if up else max(1, batch - step)
        how = outcome(at)
        if how not in ("ran", _FULL):
            return None, None
        if up and how == _FULL:
            return batch, at
        if not up and how == "ran":
            return at, batch
        if at == 1 and not up:
            return None, None
        batch, step = at, 2 * step
    return None, None
