"""What `gpumem` exports: documented, complete, and immutable where it comes from the core."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tomllib

import gpumem
from gpumem import _core

ROOT = Path(__file__).resolve().parents[2]
# Border functions that the Python layer calls and does not pass on.
INTERNAL_CORE_NAMES = {"RegionSpace", "find_gpu", "parse_alloc_conf", "replay_history"}


def _public_callables() -> Iterator[tuple[str, object]]:
    for name in gpumem.__all__:
        value = getattr(gpumem, name)
        yield name, value
        if inspect.isclass(value) and value.__module__ == "gpumem._core":
            yield from ((f"{name}.{member}", getattr(value, member)) for member in dir(value) if member[0] != "_")


@pytest.mark.parametrize(("name", "value"), list(_public_callables()))
def test_every_public_name_is_documented(name: str, value: object) -> None:
    assert (inspect.getdoc(value) or "").strip(), f"{name} has no docstring"


def test_every_name_of_the_core_is_exported_or_known_to_be_internal() -> None:
    names = {name for name in dir(_core) if not name.startswith("_")}
    assert names == (names & set(gpumem.__all__)) | INTERNAL_CORE_NAMES


def test_python_functions_document_every_parameter() -> None:
    functions: dict[str, Callable[..., object]] = {
        "estimate": gpumem.estimate,
        "max_batch": gpumem.max_batch,
        "extract": gpumem.extract,
        "pareto": gpumem.pareto,
        "sweep": gpumem.sweep,
    }
    for name, function in functions.items():
        documented = inspect.getdoc(function) or ""
        parameters = inspect.signature(function).parameters
        missing = [word for word in parameters if not re.search(rf"\b{word}\b", documented)]
        assert not missing, f"{name} does not mention {missing}"


def test_core_classes_are_frozen() -> None:
    sources = [path.read_text() for path in (ROOT / "rust" / "gpumem-py" / "src").rglob("*.rs")]
    declared = [line for text in sources for line in re.findall(r"#\[pyclass(.*)\]", text)]
    assert len(declared) == sum(inspect.isclass(getattr(_core, name)) for name in dir(_core) if name[0] != "_")
    assert all("frozen" in line for line in declared)
    with pytest.raises(AttributeError):
        gpumem.gpus()[0].name = "other"  # type: ignore[misc]


def test_public_names_stay_what_they_are_once_everything_is_imported() -> None:
    before = {name: getattr(gpumem, name) for name in gpumem.__all__}
    for module in pkgutil.walk_packages(gpumem.__path__, "gpumem."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    assert {name: getattr(gpumem, name) for name in gpumem.__all__} == before


def test_one_binary_serves_every_supported_python() -> None:
    assert Path(_core.__file__ or "").name.startswith("_core.abi3.") or _core.__file__.endswith(".pyd")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    oldest = project["requires-python"].removeprefix(">=").replace(".", "")
    assert f"abi3-py{oldest}" in workspace["dependencies"]["pyo3"]["features"]
