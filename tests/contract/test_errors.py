"""Errors survive a process border with all they carry (Ray and multiprocessing pickle them)."""

from __future__ import annotations

import inspect
import pickle

import pytest

from gpumem import errors
from gpumem.errors import GpumemError

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, GpumemError)]


def _with_all_arguments(cls: type[GpumemError]) -> GpumemError:
    values: dict[str, object] = {"message": "the fact", "hint": "the remedy"}
    for name, parameter in inspect.signature(cls).parameters.items():
        if name not in values:
            values[name] = 7 if isinstance(parameter.default, int) else f"<{name}>"
    return cls(**values)  # type: ignore[arg-type]


def test_all_classes_are_looked_at() -> None:
    assert len(CLASSES) >= 10
    assert errors.DataDependentError in CLASSES


@pytest.mark.parametrize("cls", CLASSES)
def test_pickled_errors_come_back_whole(cls: type[GpumemError]) -> None:
    error = _with_all_arguments(cls)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is cls
    assert vars(back) == vars(error)
    assert str(back) == str(error) == "the fact\n  hint: the remedy"


@pytest.mark.parametrize("cls", CLASSES)
def test_the_hint_is_optional(cls: type[GpumemError]) -> None:
    assert str(cls("the fact")) == "the fact"
    assert str(pickle.loads(pickle.dumps(cls("the fact")))) == "the fact"
