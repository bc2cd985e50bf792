"""Rows from traces: the core answers many what-ifs at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpumem._core import ModelSpec, RegionSpace
from gpumem.errors import GpumemError
from gpumem.sweeping.table import PEAKS, Columns, Sweep
from gpumem.sweeping.traces import Loaded, Traces

# Batch sizes asked for at a time: between two times progress is shown and Ctrl-C is taken.
_BATCHES_AT_ONCE = 16
_ENDS = ("low", "likely", "high")
_NO_BUDGET = 2
_PS_PER_SECOND = 1e12

_DEFAULTS: dict[str, Any] = {
    "gpu": None,
    "budget": None,
    "stack": None,
    "context": None,
    "alloc_conf": None,
    "library_workspaces": True,
    "cudnn_benchmark": False,
    # Asking cuDNN takes milliseconds for each convolution of each batch size on each card.
    "conv_workspaces": "rules",
}


class Evaluation:
    """Fills the columns of a sweep.

    Args:
        traces: All that rows need.
        upper_only: Whether only the upper end is played.
        threads: Threads of the core.
    """

    def __init__(self, traces: Traces, *, upper_only: bool, threads: int) -> None:
        self._traces = traces
        self._grid = traces.grid
        self._threads = threads
        self._upper_only = upper_only
        axes = self._grid.target
        self._targets = [
            {**_DEFAULTS, **dict(zip(axes, values, strict=True))} for values in itertools.product(*axes.values())
        ]
        rows = self._grid.rows(len(traces.models))
        ends = _ENDS[2:] if upper_only else _ENDS
        self._columns = Columns(rows, [f"{peak}_{end}" for peak in PEAKS for end in ends])

    def run(self, on_rows: Callable[[int, int], None]) -> Sweep:
        """Answer all rows.

        Args:
            on_rows: Called with the number of rows that are done, and of all.
        """
        grid, traces, total = self._grid, self._traces, self._columns.rows
        row = 0
        for model, loop, checkpoint in itertools.product(traces.models, range(len(traces.loops)), grid.checkpoints):
            for at in range(0, len(grid.batches), _BATCHES_AT_ONCE):
                batches = grid.batches[at : at + _BATCHES_AT_ONCE]
                for trace, batches_of, targets_of in self._groups(model, loop, checkpoint, batches):
                    where = [row + b * len(self._targets) + t for b in batches_of for t in targets_of]
                    self._block(trace, loop, checkpoint, [batches[b] for b in batches_of], targets_of, np.array(where))
                row += len(batches) * len(self._targets)
                on_rows(row, total)
        axes = {"model": tuple(traces.models), **grid.axes}
        return Sweep(axes, self._columns, np.arange(total), traces.notes())

    def _groups(
        self, model: str, loop: int, checkpoint: str, batches: Sequence[int]
    ) -> Iterator[tuple[Loaded, list[int], list[int]]]:
        """Batches and targets (by number) that one trace answers for."""
        found: dict[Any, tuple[Loaded, dict[int, None], dict[int, None]]] = {}
        for (b, batch), (t, target) in itertools.product(enumerate(batches), enumerate(self._targets)):
            key, loaded = self._traces.find(model, loop, checkpoint != "none", target["gpu"], batch)
            _, of_batches, of_targets = found.setdefault(key, (loaded, {}, {}))
            of_batches[b] = None
            of_targets[t] = None
        yield from ((loaded, list(of_batches), list(of_targets)) for loaded, of_batches, of_targets in found.values())

    def _block(
        self, trace: Loaded, loop: int, checkpoint: str, batches: list[int], numbers: list[int], where: Any
    ) -> None:
        targets = [self._targets[number] for number in numbers]
        if trace.error:
            self._columns.fail(where, trace.error)
        elif checkpoint == "none" and trace.spec is not None:
            self._figures(trace.spec, batches, targets, where)
        elif checkpoint == "all" and trace.space is not None:
            self._figures(trace.space.splice(list(trace.all_regions)), batches, targets, where)
            grid = where.reshape(len(batches), len(targets))
            for t, target in enumerate(targets):
                self._times(trace.space, trace.all_regions, loop, batches, target, grid[:, t])
        elif trace.space is not None:
            for (batch, target), at in zip(itertools.product(batches, targets), where, strict=True):
                self._planned(trace.space, loop, batch, target, np.array([at]))

    def _figures(self, spec: ModelSpec, batches: list[int], targets: list[dict[str, Any]], where: Any) -> None:
        columns, fits, failed = spec.figures(batches, targets, upper_only=self._upper_only, threads=self._threads)
        for number, (peak, end) in enumerate(itertools.product(PEAKS, _ENDS)):
            if not self._upper_only or end == "high":
                self._columns.fill(f"{peak}_{end}", where, np.frombuffer(columns[number], np.uint64))
        self._columns.fits[where] = np.frombuffer(fits, np.uint8) == 1
        self._columns.has_fits[where] = np.frombuffer(fits, np.uint8) != _NO_BUDGET
        for number, error in failed:
            self._columns.fail(where[number : number + 1], str(error))

    def _times(
        self,
        space: RegionSpace,
        choice: Sequence[int],
        loop: int,
        batches: list[int],
        target: dict[str, Any],
        where: Any,
    ) -> None:
        self._columns.fill("checkpointed", where, np.full(len(where), np.count_nonzero(choice)))
        if not choice:
            # No region, no plan.
            self._columns.fill("recompute_seconds", where, np.zeros(len(where)))
            return
        try:
            _, _, recompute, step = space.plan_table(bytes(choice), batches, gpu=target["gpu"], stack=target["stack"])
        except GpumemError as error:
            self._columns.fail(where, str(error))
            return
        scale = _PS_PER_SECOND * self._traces.loops[loop].get("accumulate", 1)
        self._columns.fill("step_seconds", where, np.frombuffer(step, np.uint64) / scale)
        self._columns.fill("recompute_seconds", where, np.frombuffer(recompute, np.uint64) / scale)

    def _planned(self, space: RegionSpace, loop: int, batch: int, target: dict[str, Any], where: Any) -> None:
        question = {name: value for name, value in target.items() if name != "library_workspaces"}
        try:
            found = space.cheapest_plan(batch, **question)
            if found is None:
                # What the plan with the least peak needs.
                self._columns.fill("device_bytes_high", where, np.array([space.smallest_bytes(batch, **question)]))
                self._columns.has_fits[where] = True
                return
            choice = found[0]
            self._figures(space.splice(choice), [batch], [target], where)
            self._times(space, choice, loop, [batch], target, where)
        except GpumemError as error:
            self._columns.fail(where, str(error))
