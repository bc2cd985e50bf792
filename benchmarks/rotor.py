"""The dynamic program of rotor, written from its recurrences.

Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2019, "Optimal checkpointing for heterogeneous chains": the best
schedule of a chain in which a stage is run saving all, saving its input only, or saving nothing, with segments run
again as often and as deeply nested as it takes.

`E(s, t, m)` is the least time of extra forward runs for stages `s` to `t` with `m` bytes left:

- one stage: nothing is run twice, if what it needs fits;
- save all of `s`: `E(s + 1, t, m - all_s)`;
- keep the input of `s` only, and what comes out of `c - 1`: forward time of `s .. c-1`, and
  `E(c, t, m - output_{c-1}) + E(s, c - 1, m)`.

Bytes are rounded up to slots as in the original, so a schedule is never over its budget; a slot too many costs it a
little of what is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_SLOTS = 1500
_Costs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """One stage of a chain, in bytes and any unit of time.

    Attributes:
        all_bytes: Left behind when everything is saved.
        output_bytes: Left behind when only what it passes on is.
        needs_bytes: Most while it runs, forward or backward, beyond what is left behind before it.
        forward: Time of one more forward run.
    """

    all_bytes: int
    output_bytes: int
    needs_bytes: int
    forward: float


class Rotor:
    """The best schedules of a chain for every budget up to one.

    Args:
        stages: The chain.
        tail_bytes: Most between the last forward run and the first backward, beyond what is left behind.
        most_bytes: The largest budget to be asked about.
    """

    def __init__(self, stages: Sequence[Stage], tail_bytes: int, most_bytes: int) -> None:
        self._slot = max(1, -(-most_bytes // _SLOTS))
        self._stages = stages
        tail = self._slots(tail_bytes)
        count = len(stages)
        self._least: dict[tuple[int, int], _Costs] = {}
        self._cut: dict[tuple[int, int], npt.NDArray[np.int64]] = {}
        end = np.where(np.arange(_SLOTS + 1) >= tail, 0.0, np.inf)
        for length in range(1, count + 1):
            for first in range(count - length + 1):
                self._solve(first, first + length - 1, end)

    def _slots(self, size: int) -> int:
        return -(-size // self._slot)

    def _solve(self, first: int, last: int, end: _Costs) -> None:
        stage = self._stages[first]
        room = np.arange(_SLOTS + 1) >= self._slots(stage.needs_bytes)
        if first == last:
            rest = end if last == len(self._stages) - 1 else np.zeros(_SLOTS + 1)
        else:
            rest = self._least[first + 1, last]
        best = np.where(room, self._after(rest, stage.all_bytes), np.inf)
        cut = np.full(_SLOTS + 1, first)
        forward = 0.0
        for split in range(first + 1, last + 1):
            before = self._stages[split - 1]
            forward += before.forward
            rest = self._after(self._least[split, last], before.output_bytes)
            total = forward + rest + self._least[first, split - 1]
            better = total < best
            best = np.where(better, total, best)
            cut = np.where(better, split, cut)
        self._least[first, last] = best
        self._cut[first, last] = cut

    def _after(self, rest: _Costs, size: int) -> _Costs:
        """What remains when so many bytes are gone."""
        shift = min(self._slots(size), _SLOTS + 1)
        return np.concatenate([np.full(shift, np.inf), rest[: _SLOTS + 1 - shift]])

    def least(self, budget_bytes: int) -> float | None:
        """Least time of extra runs within a budget, None when there is none."""
        found = self._least[0, len(self._stages) - 1][min(budget_bytes // self._slot, _SLOTS)]
        return None if np.isinf(found) else float(found)

    def segments(self, budget_bytes: int) -> list[tuple[int, int]]:
        """First and last stage of everything that is run again, nested ones inside others."""
        found: list[tuple[int, int]] = []
        open_: list[tuple[int, int, int]] = [(0, len(self._stages) - 1, min(budget_bytes // self._slot, _SLOTS))]
        while open_:
            first, last, slots = open_.pop()
            cut = int(self._cut[first, last][slots])
            if cut == first:
                if first < last:
                    open_.append((first + 1, last, slots - self._slots(self._stages[first].all_bytes)))
                continue
            found.append((first, cut - 1))
            open_.append((first, cut - 1, slots))
            open_.append((cut, last, slots - self._slots(self._stages[cut - 1].output_bytes)))
        return sorted(found)
