"""`package.module:factory`: the user's own code, run as it is."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

from gpumem.errors import InputError, UnknownNameError
from gpumem.sources.source import Source, nearest_hint

_RETURNS = "the factory takes no arguments and returns a torch.nn.Module, or (module, input)"


def resolve(module_name: str, attribute: str, input: Any, near_libraries: list[str]) -> Source:
    """Import `module_name` and call its `attribute`.

    Raises:
        UnknownNameError: if there is no such module or attribute.
        InputError: if importing or calling fails (the cause is chained), or the result is no module.
    """
    return built(_find(module_name, attribute, near_libraries), f"{module_name}:{attribute}", input)


def built(factory: object, name: str, input: Any) -> Source:
    """Call a factory, or take a module as it is.

    Raises:
        InputError: calling fails (the cause is chained), or the result is no module.
    """
    from torch import nn

    made = factory if isinstance(factory, nn.Module) else _call(factory, name)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        model, own_input = made
        return Source(model, own_input if input is None else input, name)
    if isinstance(made, nn.Module):
        return Source(made, input, name)
    raise InputError(f"{name} returned {type(made).__name__}, not a module", _RETURNS)


def _find(module_name: str, attribute: str, near_libraries: list[str]) -> object:
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"importing {module_name} failed: {error}", "install what it needs") from error
        did_you_mean = f"did you mean {near_libraries[0]}:{attribute}? Otherwise " if near_libraries else ""
        raise UnknownNameError(
            f"there is no library or module {module_name!r}",
            f"{did_you_mean}run where {module_name!r} can be imported (PYTHONPATH)",
        ) from error
    except Exception as error:
        raise InputError(f"importing {module_name} raised {type(error).__name__}: {error}") from error
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [known for known in dir(found) if not known.startswith("_")]
            raise UnknownNameError(f"{module_name} has no {attribute!r}", nearest_hint(part, public, _RETURNS))
        found = getattr(found, part)
    return found


def _call(factory: object, name: str) -> object:
    if not callable(factory):
        raise InputError(f"{name} is {type(factory).__name__}, not a factory", _RETURNS)
    try:
        return cast("Callable[[], object]", factory)()
    except Exception as error:
        raise InputError(f"{name} raised {type(error).__name__}: {error}", _RETURNS) from error
