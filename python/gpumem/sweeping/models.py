"""What is swept: names, factories and specs, each with a name of its own."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from gpumem._core import ModelSpec
from gpumem.errors import InputError

Model: TypeAlias = "str | ModelSpec | Callable[[], Any]"
"""A source name (`timm:resnet50`), a spec, or a picklable function that returns a module, or `(module, input)`."""

_KINDS = (
    "pass names ('timm:resnet50', 'package.module:factory'), functions that return a module, or specs from "
    "gpumem.extract(model)"
)


def read_models(given: Any) -> dict[str, Model]:
    """Name the models of a sweep.

    Args:
        given: One model, a sequence of them, or a mapping of names to them.

    Raises:
        InputError: none at all, two of one name, a module instead of a factory, or a factory that cannot be pickled.
    """
    models: dict[str, Model] = {}
    for name, model in _named(given):
        if name in models:
            raise InputError(f"two models are named {name!r}", "give them names: {'small': ..., 'large': ...}")
        models[name] = _checked(name, model)
    if not models:
        raise InputError("there is no model to sweep", _KINDS)
    return models


def _named(given: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(given, Mapping):
        for name, model in given.items():
            if not isinstance(name, str) or not name:
                raise InputError(f"the name of a model is a text, not {name!r}")
            yield name, model
    elif isinstance(given, (str, ModelSpec)) or callable(given) or not hasattr(given, "__iter__"):
        yield _name(given), given
    else:
        for model in given:
            yield _name(model), model


def _name(model: Any) -> str:
    if isinstance(model, str):
        return model
    if isinstance(model, ModelSpec):
        return str(json.loads(model.about_json())["model"])
    if isinstance(model, functools.partial):
        arguments = [*map(repr, model.args), *(f"{name}={value!r}" for name, value in model.keywords.items())]
        return f"{_name(model.func)}({', '.join(arguments)})"
    return str(getattr(model, "__qualname__", type(model).__name__))


def _checked(name: str, model: Any) -> Model:
    if isinstance(model, (str, ModelSpec)):
        return model
    if hasattr(model, "state_dict") and not isinstance(model, type):
        raise InputError(
            f"{name} is a module, and its weights would travel to every process",
            "pass a function that makes it, or gpumem.extract(model), whose loop is then fixed",
        )
    if not callable(model):
        raise InputError(f"{name!r} is {type(model).__name__}, no model", _KINDS)
    try:
        pickle.dumps(model)
    except Exception as error:
        raise InputError(
            f"the factory {name} cannot be pickled: {error}",
            "define it at the top of a module; bind arguments with functools.partial",
        ) from error
    factory: Callable[[], Any] = model
    return factory
