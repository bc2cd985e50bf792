"""The table of a sweep: axes and answers as columns, without pandas or Arrow, and ready for both."""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpumem.errors import GpumemError, InputError, UnknownNameError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = 1
"""Version of the JSON form."""
PEAKS = ("requested_bytes", "allocated_bytes", "reserved_bytes", "device_bytes")
"""The four quantities; each has a column for every end of its uncertainty that was asked for."""
TIMES = ("step_seconds", "recompute_seconds", "checkpointed")
"""Only where checkpoints are an axis: least time of a step and of what is run again, regions that are checkpointed."""


class Columns:
    """The answers of all rows.

    Args:
        rows: Their number.
        names: Columns of bytes.
    """

    def __init__(self, rows: int, names: Sequence[str]) -> None:
        self.rows = rows
        self.names = tuple(names)
        self.values: dict[str, NDArray[Any]] = {name: np.zeros(rows, np.uint64) for name in names}
        self.known: dict[str, NDArray[Any]] = {name: np.zeros(rows, np.bool_) for name in names}
        self.fits = np.zeros(rows, np.bool_)
        self.has_fits = np.zeros(rows, np.bool_)
        self.errors: list[str] = [""]
        self.error_of = np.zeros(rows, np.uint32)
        self._numbers = {"": 0}

    def fill(self, name: str, where: Any, values: Any) -> None:
        """Answers of these rows."""
        if name not in self.values:
            kind = np.uint32 if name == "checkpointed" else np.float64
            self.values[name], self.known[name] = np.zeros(self.rows, kind), np.zeros(self.rows, np.bool_)
        self.values[name][where] = values
        self.known[name][where] = True

    def fail(self, where: Any, error: str) -> None:
        """These rows have no answer."""
        number = self._numbers.setdefault(error, len(self.errors))
        if number == len(self.errors):
            self.errors.append(error)
        self.error_of[where] = number
        self.has_fits[where] = False
        for known in self.known.values():
            known[where] = False


class Sweep:
    """Rows of a sweep. Immutable; `filter`, `sort` and `best` give other tables over the same answers.

    A column is a numpy array: `table["device_bytes_high"]`; missing answers are masked. A row is a dict: `table[0]`.
    Columns are the axes (`model`, then those of the grid), the peaks in bytes (`requested_bytes_likely`, ...,
    `device_bytes_high`), `fits` (the judgement of `ModelSpec.fits`; missing without a budget or card), `error`, and,
    where checkpoints are an axis, `checkpointed` regions, `step_seconds` and `recompute_seconds` by the roofline.

    Attributes:
        axes: Name to values, in the order in which rows count them, the last one fastest.
        assumptions: What was guessed, by model.
    """

    def __init__(
        self,
        axes: Mapping[str, tuple[Any, ...]],
        columns: Columns,
        rows: NDArray[Any],
        assumptions: Mapping[str, Sequence[str]],
    ) -> None:
        self.axes = dict(axes)
        self.assumptions = {model: list(notes) for model, notes in assumptions.items()}
        self._columns = columns
        self._rows = rows

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        extra = tuple(name for name in TIMES if name in self._columns.values)
        return (*self.axes, *self._columns.names, "fits", *extra, "error")

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        columns = {name: self[name].tolist() for name in self.columns}
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, str):
            return self._column(key)
        if not hasattr(key, "__index__"):
            raise TypeError(f"a column's name or a row's number, not {type(key).__name__}")
        if not -len(self) <= key < len(self):
            raise IndexError(f"row {key} of a table with {len(self)} rows")
        number = int(key) % len(self)
        return next(iter(self._of(self._rows[number : number + 1])))

    def _column(self, name: str) -> Any:
        columns = self._columns
        if name in self.axes:
            values = np.empty(len(self.axes[name]), object)
            values[:] = [*self.axes[name]]
            return (self._numeric(name) if name == "batch" else values)[self.codes(name)]
        if name == "fits":
            return np.ma.masked_array(columns.fits[self._rows], ~columns.has_fits[self._rows])
        if name == "error":
            return np.array([error or None for error in columns.errors], object)[columns.error_of[self._rows]]
        if name not in columns.values:
            near = difflib.get_close_matches(name, self.columns, n=2)
            raise UnknownNameError(
                f"the table has no column {name!r}", f"nearest: {', '.join(near)}" if near else ", ".join(self.columns)
            )
        return np.ma.masked_array(columns.values[name][self._rows], ~columns.known[name][self._rows])

    def _numeric(self, name: str) -> NDArray[Any]:
        return np.array(self.axes[name], np.int64)

    def codes(self, axis: str) -> NDArray[Any]:
        """For every row, the number of its value in `axes[axis]`."""
        names = list(self.axes)
        sizes = [len(values) for values in self.axes.values()]
        after = math.prod(sizes[names.index(axis) + 1 :])
        codes: NDArray[Any] = self._rows // after % len(self.axes[axis])
        return codes

    def _of(self, rows: NDArray[Any]) -> Sweep:
        return Sweep(self.axes, self._columns, rows, self.assumptions)

    def filter(self, mask: Any = None, /, **equal: Any) -> Sweep:
        """The rows for which `mask` holds and whose columns have these values.

        Args:
            mask: A boolean array, such as `table["batch"] >= 32`; masked elements do not hold.
            equal: Column to its value: `fits=True`, `gpu="t4"`; a list means any of them.

        Raises:
            InputError: a mask of another length or type.
            UnknownNameError: a column that does not exist.
        """
        kept = np.ones(len(self), np.bool_)
        if mask is not None:
            given = np.ma.filled(np.ma.asarray(mask), False)
            if given.shape != (len(self),) or given.dtype != np.bool_:
                raise InputError(f"a mask has a boolean for each of {len(self)} rows, not {given.dtype}{given.shape}")
            kept &= given
        for name, value in equal.items():
            wanted = value if isinstance(value, list) else [value]
            kept &= self._equal(name, wanted)
        return self._of(self._rows[kept])

    def _equal(self, name: str, wanted: list[Any]) -> Any:
        if name in self.axes:
            return np.array([value in wanted for value in self.axes[name]], np.bool_)[self.codes(name)]
        column = self._column(name)
        found = np.zeros(len(self), np.bool_)
        for value in wanted:
            if value is None:
                found |= (
                    np.ma.getmaskarray(column)
                    if name != "error"
                    else np.array([error is None for error in column], np.bool_)
                )
            else:
                found |= np.ma.filled(np.ma.asarray(column == value), False).astype(np.bool_)
        return found

    def sort(self, by: str, *, descending: bool = False) -> Sweep:
        """Rows in the order of a column; rows without an answer come last, equal ones keep their order."""
        column = np.ma.asarray(self.codes(by) if by in self.axes and by != "batch" else self._column(by))
        if column.dtype == object:
            column = np.ma.asarray(np.array([str(value or "") for value in column]))
        known = np.flatnonzero(~np.ma.getmaskarray(column))
        values = column.data[known]
        if descending:
            # Stable from the other end: equal rows keep their order.
            order = known[::-1][np.argsort(values[::-1], kind="stable")][::-1]
        else:
            order = known[np.argsort(values, kind="stable")]
        unknown = np.flatnonzero(np.ma.getmaskarray(column))
        return self._of(self._rows[np.concatenate([order, unknown])])

    def best(self, by: str = "batch", *, per: str | Sequence[str] = ("model",), smallest: bool = False) -> Sweep:
        """Of the rows that fit, the one with the most of a column, for each combination of `per`.

        Args:
            by: Column to go by: `batch`, `device_bytes_high`, ...
            per: Axes of which each combination has a row of its own; empty for one row in all.
            smallest: The least instead of the most.
        """
        axes = (per,) if isinstance(per, str) else tuple(per)
        if missing := [axis for axis in axes if axis not in self.axes]:
            near = difflib.get_close_matches(missing[0], self.axes, n=2) or list(self.axes)
            raise UnknownNameError(f"the table has no axis {missing[0]!r}", f"nearest: {', '.join(near)}")
        ordered = self.filter(fits=True).sort(by, descending=not smallest)
        groups = np.zeros(len(ordered), np.int64)
        for axis in axes:
            groups = groups * len(self.axes[axis]) + ordered.codes(axis)
        _, first = np.unique(groups, return_index=True)
        return self._of(ordered._rows[np.sort(first)])

    def to_dict(self) -> dict[str, list[Any]]:
        """Column to values; missing ones are None."""
        return {name: self[name].tolist() for name in self.columns}

    def to_json(self) -> str:
        """The JSON form: `{"schema", "assumptions", "columns"}`."""
        plain = {
            name: [_plain(v) for v in values] if name in self.axes else values
            for name, values in self.to_dict().items()
        }
        return json.dumps({"schema": SCHEMA, "assumptions": self.assumptions, "columns": plain})

    def to_csv(self, file: str | Path | None = None) -> str | None:
        """Write CSV with a line of names; missing answers are empty. Without a file, the text."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self:
            writer.writerow("" if value is None else _plain(value) for value in row.values())
        if file is None:
            return out.getvalue()
        Path(file).write_text(out.getvalue(), encoding="utf-8")
        return None

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`: axes are categories, missing answers are NA.

        Raises:
            GpumemError: pandas is not installed.
        """
        pandas = _library("pandas")
        found: dict[str, Any] = {}
        for name in self.columns:
            column = self[name]
            if name in self.axes and name != "batch":
                labels = [_label(value) for value in self.axes[name]]
                found[name] = pandas.Categorical.from_codes(self.codes(name), categories=labels)
            elif isinstance(column, np.ma.MaskedArray):
                masked = {
                    "b": pandas.arrays.BooleanArray,
                    "u": pandas.arrays.IntegerArray,
                    "f": pandas.arrays.FloatingArray,
                }
                found[name] = masked[column.dtype.kind](column.data.copy(), np.ma.getmaskarray(column).copy())
            else:
                found[name] = column
        return pandas.DataFrame(found)

    def to_arrow(self) -> Any:
        """A `pyarrow.Table`: axes are dictionaries, missing answers are null.

        Raises:
            GpumemError: pyarrow is not installed.
        """
        arrow = _library("pyarrow")
        found: dict[str, Any] = {}
        for name in self.columns:
            column = self[name]
            if name in self.axes and name != "batch":
                labels = [_label(value) for value in self.axes[name]]
                found[name] = arrow.DictionaryArray.from_arrays(self.codes(name).astype(np.int32), labels)
            elif isinstance(column, np.ma.MaskedArray):
                found[name] = arrow.array(column.data, mask=np.ma.getmaskarray(column))
            else:
                found[name] = arrow.array(column, arrow.string() if name == "error" else None)
        return arrow.table(found)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The Arrow stream that Polars, DuckDB and others read; by pyarrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __str__(self) -> str:
        from gpumem.sweeping.text import sweep_text

        return sweep_text(self)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(values)}" for name, values in self.axes.items())
        return f"Sweep({len(self)} rows; {sizes})"


def _plain(value: Any) -> Any:
    """As JSON and CSV have it: what is no number, text or truth becomes its Python text."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else _label(value)


def _label(value: Any) -> Any:
    """The text of an axis's value."""
    return value if isinstance(value, str) else str(value)


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise GpumemError(f"{name} is not installed", f"pip install {name}") from error
