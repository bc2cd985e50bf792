"""The grid of a sweep: its axes, read and checked before anything is traced."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpumem._core import find_gpu, parse_alloc_conf
from gpumem.errors import InputError, UnknownNameError
from gpumem.units import parse_bytes

CHECKPOINTS = ("none", "all", "plan")
"""No checkpoints, every region checkpointed, or the plan with the least recomputation that fits."""
LOOP_AXES = (
    "input", "mode", "precision", "optimizer", "criterion", "target", "step", "channels_last", "zero_grad",
    "accumulate", "clip_grad_norm", "step_in_backward", "host_reads",
)  # fmt: skip
"""Keywords of `gpumem.extract`: another value is another trace."""
TARGET_AXES = ("gpu", "budget", "stack", "context", "alloc_conf", "cudnn_benchmark", "conv_workspaces")
"""Keywords of `ModelSpec.estimate`: another value is another question to the same trace."""
AXES = (*LOOP_AXES, "checkpoint", "batch", *TARGET_AXES)

LARGEST_TABLE = 20_000_000
"""Rows that one table may have: its columns take some 100 bytes for each."""

# Axes whose values may be tuples themselves.
_TUPLES_ARE_VALUES = ("input", "target", "optimizer")
_OTHER_NAMES = {
    "batch_size": "batch",
    "batch_sizes": "batch",
    "batches": "batch",
    "dtype": "precision",
    "image_size": "input",
    "img_size": "input",
    "memory_format": "channels_last",
    "model": "models, the first argument",
    "sequence_length": "input",
    "size": "input",
}


@dataclass(frozen=True)
class Grid:
    """Axes with their values, in the order in which rows count them: loop, checkpoint, batch, target.

    Attributes:
        axes: Name to values, as they were given.
    """

    axes: Mapping[str, tuple[Any, ...]]

    def of(self, names: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
        """These axes, as far as the grid has them."""
        return {name: values for name, values in self.axes.items() if name in names}

    @property
    def loop(self) -> dict[str, tuple[Any, ...]]:
        """Axes of the trace."""
        return self.of(LOOP_AXES)

    @property
    def target(self) -> dict[str, tuple[Any, ...]]:
        """Axes of the question."""
        return self.of(TARGET_AXES)

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes."""
        return self.axes["batch"]

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Ways of checkpointing."""
        return self.axes.get("checkpoint", ("none",))

    def rows(self, models: int) -> int:
        """Rows of the table."""
        return models * math.prod(len(values) for values in self.axes.values())


def read_grid(given: Mapping[str, Any]) -> Grid:
    """Check a grid.

    Args:
        given: Axis to its values: a list, range or array (a tuple too, where no value is a tuple), or one value.

    Raises:
        InputError: no batch, an axis without values or with one of them twice, a batch that is no positive integer, or
            checkpoints for inference.
        UnknownNameError: an unknown axis, card or way of checkpointing.
        GpumemError: a budget, context or allocator setting that cannot be read.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"a grid is a mapping of axes to values, not {type(given).__name__}", "{'batch': [32]}")
    for name in given:
        if name not in AXES:
            raise _unknown(name)
    if "batch" not in given:
        raise InputError("the grid has no batch", "for example {'batch': range(8, 257, 8), 'gpu': ['t4', 'l4']}")
    axes = {name: _values(name, given[name]) for name in AXES if name in given}
    grid = Grid(axes)
    trains = "train" in axes.get("mode", ("train",))
    if not trains and grid.checkpoints != ("none",):
        raise InputError("checkpoints are for training, and mode is 'infer'", "leave one of the axes out")
    if "infer" in axes.get("mode", ()) and grid.checkpoints != ("none",):
        raise InputError(
            "checkpoints are for training, and the grid has mode 'infer' too", "sweep the modes one by one"
        )
    if "plan" in grid.checkpoints and all(axes.get(name, (None,)) == (None,) for name in ("gpu", "budget")):
        raise InputError("checkpoint 'plan' is the best plan within a limit", "add a gpu or a budget to the grid")
    return grid


def check_size(grid: Grid, models: int) -> None:
    """Refuse a table that no memory holds.

    Raises:
        InputError: too many rows; the message has the axes.
    """
    rows = grid.rows(models)
    if rows > LARGEST_TABLE:
        sizes = {"models": models} | {name: len(values) for name, values in grid.axes.items()}
        product = " x ".join(f"{size} {name}" for name, size in sizes.items() if size > 1)
        raise InputError(
            f"the grid has {rows:,} rows ({product}); a table holds at most {LARGEST_TABLE:,}",
            "sweep it in parts, for example one card at a time: what was traced is in the cache; for the largest batch "
            "alone, ModelSpec.max_batch needs no batch axis",
        )


def _unknown(name: Any) -> UnknownNameError:
    known = _OTHER_NAMES.get(str(name).lower())
    near = [known] if known else difflib.get_close_matches(str(name), AXES, n=2)
    hint = f"nearest: {', '.join(near)}; axes: {', '.join(AXES)}" if near else f"axes: {', '.join(AXES)}"
    return UnknownNameError(f"unknown axis {name!r} of the grid", hint)


def _values(name: str, given: Any) -> tuple[Any, ...]:
    several: Any = given
    if isinstance(given, (str, Mapping)) or not hasattr(given, "__iter__"):
        several = [given]
    elif name in _TUPLES_ARE_VALUES and (isinstance(given, tuple) or hasattr(given, "dtype")):
        # A shape, or an example tensor.
        several = [given]
    if isinstance(several, range) and len(several) > LARGEST_TABLE:
        raise InputError(f"axis {name!r} has {len(several):,} values; a table holds at most {LARGEST_TABLE:,} rows")
    check = _CHECKS.get(name)
    values = [value if check is None else check(value) for value in several]
    if not values:
        raise InputError(f"axis {name!r} of the grid has no values", "leave it out for its default")
    seen: set[str] = set()
    for value in values:
        if repr(value) in seen:
            raise InputError(f"axis {name!r} of the grid has {value!r} twice")
        seen.add(repr(value))
    return tuple(values)


def _batch(value: Any) -> int:
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    batch = int(value.__index__()) if is_integer else 0
    if not 1 <= batch < 1 << 63:
        raise InputError(f"batch must be a positive integer, not {value!r}")
    return batch


def _checkpoint(value: Any) -> str:
    if value not in CHECKPOINTS:
        near = difflib.get_close_matches(str(value), CHECKPOINTS, n=1)
        hint = f"nearest: {near[0]}; " if near else ""
        raise UnknownNameError(f"unknown checkpoint {value!r}", f"{hint}known: {', '.join(CHECKPOINTS)}")
    return str(value)


def _gpu(value: Any) -> Any:
    if value is not None:
        find_gpu(value)
    return value


def _size(what: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value is not None and not (what == "context" and value == 0):
            parse_bytes(value, what)
        return value

    return read


def _alloc_conf(value: Any) -> Any:
    if value is not None:
        parse_alloc_conf(value)
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "alloc_conf": _alloc_conf,
    "batch": _batch,
    "budget": _size("budget"),
    "checkpoint": _checkpoint,
    "context": _size("context"),
    "gpu": _gpu,
}
