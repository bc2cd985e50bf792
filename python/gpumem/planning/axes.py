"""What a search may choose: batch, precision, and whatever else of the loop the caller opens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpumem.errors import InputError, PlanError, UnknownNameError
from gpumem.extraction.options import check_options

OBJECTIVES = ("throughput", "batch")
OPEN = ("optimizer", "zero_grad", "channels_last", "step_in_backward")
"""Keywords of `gpumem.extract` that can be axes; precision has a keyword of its own."""
# Beyond this a batch is a mistake: no loop has so many samples in memory.
_LARGEST_BATCH = 1 << 40


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What the search may choose.

    Attributes:
        batch: Samples per micro-batch, or None to choose.
        global_batch: Samples per optimizer step, or None; the micro-batch and their number are then chosen.
        objective: `throughput` or `batch`, when the batch is free.
        precisions: Precisions to choose from.
        offload: Whether what regions save may wait in the host's memory.
        choices: Further keywords of `gpumem.extract` with the values to choose from (`OPEN`).
    """

    batch: int | None
    global_batch: int | None
    objective: str
    precisions: tuple[str, ...]
    offload: bool = False
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            InputError: no positive batch, both a batch and a global batch, or nothing to choose from.
            UnknownNameError: a keyword that cannot be an axis.
        """
        for name in ("batch", "global_batch"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"{name} must be a positive integer, not {value!r}")
            if value is not None and value > _LARGEST_BATCH:
                raise InputError(f"{name} must be at most {_LARGEST_BATCH}, not {value}")
        if self.batch is not None and self.global_batch is not None and self.global_batch % self.batch:
            raise InputError(
                f"global_batch={self.global_batch} is no multiple of batch={self.batch}",
                "give one of them: the other is chosen",
            )
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective must be {' or '.join(map(repr, OBJECTIVES))}, not {self.objective!r}")
        if not self.precisions:
            raise InputError("there is no precision to choose from", "pass precision='amp-bf16' or several in a tuple")
        if not isinstance(self.offload, bool):
            raise InputError(f"offload must be True or False, not {self.offload!r}")
        for name, values in self.choices.items():
            if name not in OPEN:
                raise UnknownNameError(f"choose has no axis {name!r}", f"known: {', '.join(OPEN)}")
            if not isinstance(values, tuple) or not values:
                raise InputError(
                    f"choose={{{name!r}: ...}} leaves nothing to choose from", "give the values in a tuple or list"
                )

    def loops(self, loop: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Every loop that the axes allow, in the order in which they were given.

        Raises:
            PlanError: each contradicts itself.
            GpumemError: the only one does, or has a value that does not exist.
        """
        names = ("precision", *self.choices)
        combinations = list(itertools.product(self.precisions, *self.choices.values()))
        contradicting: list[InputError] = []
        for values in combinations:
            one = {**loop, **dict(zip(names, values, strict=True))}
            try:
                check_options(one)
            except InputError as error:
                if len(combinations) == 1:
                    raise
                contradicting.append(error)
                continue
            yield one
        if len(contradicting) == len(combinations):
            first = contradicting[0]
            raise PlanError(f"the axes leave no loop to plan for: {first.message}", first.hint)
