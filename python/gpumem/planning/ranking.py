"""Every combination of batch size, precision and checkpoint plan of a model, ranked: a million in seconds.

No plan is played for that. The most requested bytes of each are exact. What is reserved is bounded from below by the
bytes of live blocks, which proves for many that they do not fit; of the others, the best plan for each batch size and
precision is searched as `gpumem.plan` does, and played.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from gpumem.errors import InputError
from gpumem.extraction import TRACED_BATCHES
from gpumem.planning.loops import Choice, PlannedLoop
from gpumem.planning.search import budget_bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Bits of a plan's number; more regions than that are sampled.
_ALL_PLANS_UP_TO = 20
_SEED = 0


@dataclass(frozen=True)
class Best:
    """The plan with the least recomputation that fits, at one batch size and precision; it was played.

    Attributes:
        precision: Precision of the loop.
        choice: What the search found.
    """

    precision: str
    choice: Choice


@dataclass(frozen=True)
class Ranking:
    """All combinations, the fastest first among those that may fit, then those that cannot.

    Attributes:
        precisions: Precisions, as `precision` numbers them.
        paths: Regions; column `r` of `plans` is whether region `r` is checkpointed.
        plans: One row of bytes for each plan.
        batch: Batch size of each combination.
        precision: Number of its precision.
        plan: Number of its plan.
        requested_bytes: Most requested bytes at a time without a limit, exact. (At a limit, convolutions do without
            workspaces.)
        least_reserved_bytes: Proven lower bound of what is reserved (and allocated).
        samples_per_second: By the roofline of the card, exact in that model.
        may_fit: Whether the bound leaves it open that it fits; where not, it fits under no circumstances.
        best: For each precision and batch size at which any plan was found to fit, the fastest found.
    """

    precisions: tuple[str, ...]
    paths: tuple[str, ...]
    plans: NDArray[Any]
    batch: NDArray[Any]
    precision: NDArray[Any]
    plan: NDArray[Any]
    requested_bytes: NDArray[Any]
    least_reserved_bytes: NDArray[Any]
    samples_per_second: NDArray[Any]
    may_fit: NDArray[Any]
    best: tuple[Best, ...]

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def undecided_before_best(self) -> int:
        """Combinations that would be faster than the best that was played, and that no proof excludes."""
        if not self.best:
            return int(np.count_nonzero(self.may_fit))
        speed = max(best.choice.samples_per_second for best in self.best)
        return int(np.count_nonzero(self.may_fit & (self.samples_per_second > speed * (1 + 1e-9))))


def rank_plans(
    model: nn.Module,
    input: Any,
    batches: Sequence[int],
    precisions: Sequence[str],
    loop: Mapping[str, Any],
    target: Mapping[str, Any],
    *,
    plans: int = 1 << 16,
    threads: int | None = None,
) -> Ranking:
    """Rank every combination under a budget.

    Args:
        model: Any module; never modified.
        input: As for `gpumem.extract`.
        batches: Batch sizes; multiples of 16 of them are summed up fastest.
        precisions: Precisions.
        loop: All keywords of `gpumem.extract` but `batches`.
        target: Keywords of `ModelSpec.estimate`; `gpu` or `budget` is needed.
        plans: At most so many plans: all where regions are few enough, else a sample with the two uniform ones.
        threads: Threads of the core; None takes one for each core.

    Raises:
        GpumemError: the model cannot be traced or has no regions.
    """
    loops = [PlannedLoop(model, input, TRACED_BATCHES, {**loop, "precision": name}, parts=False) for name in precisions]
    return rank_loops(loops, batches, target, plans=plans, threads=threads)


def rank_loops(
    loops: Sequence[PlannedLoop],
    batches: Sequence[int],
    target: Mapping[str, Any],
    *,
    plans: int = 1 << 16,
    threads: int | None = None,
) -> Ranking:
    """The same for loops that are traced, one for each precision."""
    if not batches or not loops or plans < 2:
        raise InputError("nothing to rank", "give batches, precisions and at least two plans")
    if any(each.region_count != loops[0].places for each in loops) or not loops[0].places:
        raise InputError("not every region can be checkpointed in every precision", "use gpumem.plan")
    # What cuDNN itself says takes milliseconds for each convolution of each batch size.
    target = {**target, "conv_workspaces": "rules"}
    budget_bytes = budget_bytes_of(target)
    choices = _choices(loops[0].places, plans)
    count = threads or os.cpu_count() or 1
    columns: list[tuple[Any, Any, Any]] = []
    best: list[Best] = []
    for planned in loops:
        card = {name: target[name] for name in ("gpu", "stack") if target.get(name) is not None}
        table = planned.space.plan_table(choices.tobytes(), list(batches), threads=count, **card)
        requested, least, recompute, step = (np.frombuffer(column, np.uint64) for column in table)
        seconds = (np.tile(step, len(choices)) + recompute) / 1e12 / int(planned.loop["accumulate"])
        columns.append((requested, least, np.tile(np.array(batches, np.float64), len(choices)) / seconds))
        with ThreadPoolExecutor(count) as pool:
            found = pool.map(functools.partial(planned.cheapest, target=target), batches)
            best += [Best(planned.loop["precision"], choice) for choice in found if choice is not None]
    requested, least, speed = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    context_bytes = loops[0].kept().estimate(batches[0], **target).to_dict()["context"]["high"]
    may_fit = least <= max(budget_bytes - context_bytes, 0)
    order = np.lexsort((-speed, ~may_fit))
    in_loop = len(choices) * len(batches)
    return Ranking(
        precisions=tuple(each.loop["precision"] for each in loops),
        paths=tuple(loops[0].space.paths),
        plans=choices,
        batch=np.array(batches, np.int64)[order % len(batches)],
        precision=order // in_loop,
        plan=order % in_loop // len(batches),
        requested_bytes=requested[order],
        least_reserved_bytes=least[order],
        samples_per_second=speed[order],
        may_fit=may_fit[order],
        best=tuple(best),
    )


def _choices(regions: int, most: int) -> NDArray[Any]:
    """All plans, or a sample that is the same on every machine."""
    if regions <= _ALL_PLANS_UP_TO and 1 << regions <= most:
        return np.array(list(itertools.product((0, 1), repeat=regions)), np.uint8)
    random = np.random.default_rng(_SEED)
    if regions <= _ALL_PLANS_UP_TO:
        numbers = np.sort(random.choice(1 << regions, most, replace=False))
        drawn = (numbers[:, None] >> np.arange(regions) & 1).astype(np.uint8)
    else:
        drawn = random.integers(0, 2, (most, regions), np.uint8)
    drawn[0], drawn[-1] = 0, 1
    return np.unique(drawn, axis=0)
