"""`gpumem.sweep`: traces in parallel, answers from the core."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpumem._core import ModelSpec
from gpumem.api import needing_torch
from gpumem.errors import InputError
from gpumem.sweeping.cache import Cache
from gpumem.sweeping.evaluate import Evaluation
from gpumem.sweeping.execute import Executor, check_executor
from gpumem.sweeping.grid import Grid, check_size, read_grid
from gpumem.sweeping.job import Job, Traced
from gpumem.sweeping.models import Model, read_models
from gpumem.sweeping.progress import OnProgress, Progress
from gpumem.sweeping.table import Sweep
from gpumem.sweeping.traces import Traces


def sweep(
    models: Any,
    grid: Mapping[str, Any],
    *,
    executor: Executor | None = None,
    cache: str | Path | bool | None = True,
    upper_only: bool = False,
    threads: int | None = None,
    progress: OnProgress | bool | None = None,
) -> Sweep:
    """Answer every combination of models, loops, batch sizes and cards, each exactly as `ModelSpec.estimate` does.

    A model is traced once for each combination of the loop's axes, in parallel, and what was traced is kept on disk;
    batch sizes, cards and budgets are answered from that. A combination that cannot be traced is a row with its error.

    Args:
        models: One or several: source names (`timm:resnet50`), functions that return a module (or `(module, input)`)
            and can be pickled, `ModelSpec`s; a mapping gives them names.
        grid: Axis to a list of values, or one value. `batch` is needed. Axes of the loop are the keywords of
            `gpumem.extract` (precision, optimizer, input, mode, channels_last, ...), of the question those of
            `ModelSpec.estimate` (gpu, budget, stack, context, alloc_conf, cudnn_benchmark). `checkpoint` is `none`,
            `all` (every region) or `plan` (the plan with the least recomputation that fits the row's limit).
        executor: Runs the traces: anything with `submit`, such as `concurrent.futures` or Dask executors. None takes
            processes on this machine.
        cache: Folder for traces; True is the system's folder for caches, None keeps nothing. An entry is found again
            when the model's source, the loop, gpumem and the libraries are the same.
        upper_only: Play the upper end of every uncertainty alone, three times as fast: what fits is the same, and
            columns of likely and low figures are left out.
        threads: Threads that answer; None takes one for each core.
        progress: A function `(what, done, total)`, True for a bar on stderr, False for none; None is a bar in a
            terminal.

    Returns:
        A `Sweep`: columns by name, rows by number; `filter`, `best`, `sort`, `to_pandas`, `to_arrow`, `to_csv`,
        `to_json`.

    Raises:
        InputError: an axis, model, executor or cache that cannot be meant, or more rows than a table holds.
        UnknownNameError: an unknown axis or value.
        GpumemError: PyTorch is not installed, or the processes that trace end.
    """
    check_executor(executor)
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise InputError(f"threads must be a positive integer, not {threads!r}")
    named, axes = read_models(models), read_grid(grid)
    check_size(axes, len(named))
    kept = Cache.at(cache)
    _check_loop(named, axes)
    traces = Traces(named, axes)
    with Progress(progress) as shown:
        done = 0

        def on_traced(job: Job, answer: Traced) -> None:
            nonlocal done
            done += 1
            shown.at("tracing", done, max(done, traces.expected))

        traces.trace(kept, executor, on_traced)
        evaluation = Evaluation(traces, upper_only=upper_only, threads=threads or os.cpu_count() or 1)
        return evaluation.run(lambda rows, total: shown.at("evaluating", rows, total))


def _check_loop(models: Mapping[str, Model], grid: Grid) -> None:
    """Names and values of the loop's axes, before anything is built."""
    specs = [name for name, model in models.items() if isinstance(model, ModelSpec)]
    fixed = [*grid.loop, *(("checkpoint",) if grid.checkpoints != ("none",) else ())]
    if specs and fixed:
        raise InputError(
            f"{specs[0]!r} is a spec, whose loop is traced already, and the grid has the axis {fixed[0]!r}",
            "pass a name or a factory instead, or leave the axis out",
        )
    if len(specs) == len(models):
        return
    with needing_torch():
        from gpumem.extraction.inputs import parse_input
        from gpumem.extraction.keywords import loop_keywords
        from gpumem.extraction.optimizer import optimizer_factory
        from gpumem.extraction.options import check_options
    for name, values in grid.loop.items():
        for value in values:
            check_options({**loop_keywords({}), **({name: value} if name != "input" else {})})
            if name == "optimizer":
                optimizer_factory(value)
            if name in ("input", "target") and value is not None:
                parse_input(value)
