"""From what the user names to an optimizer on the traced parameters."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from gpumem.errors import InputError, UnknownNameError
from gpumem.text import optimizer_from_text

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]


def optimizer_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """Lower-case name to class, of every optimizer in `torch.optim` of this torch."""
    return {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }


def optimizer_factory(optimizer: Any, *, one_by_one: bool = False) -> tuple[OptimizerFactory, str]:
    """A function `params -> Optimizer` and its description.

    Args:
        optimizer: A name of `torch.optim` (any case), also with arguments (`"sgd(momentum=0.9)"`), `(name or class,
            kwargs)`, an Optimizer class, or a function `params -> Optimizer`. Names and classes keep PyTorch's
            defaults (foreach on CUDA).
        one_by_one: Whether it is made for single parameters: names and classes are for-loops then (`foreach=False`),
            unless they say otherwise.

    Raises:
        UnknownNameError: for a name that `torch.optim` lacks.
        InputError: for an optimizer instance or another type, or one that needs a closure.
    """
    kwargs: dict[str, Any] = {}
    if isinstance(optimizer, str):
        optimizer = optimizer_from_text(optimizer)
    if isinstance(optimizer, tuple) and len(optimizer) == 2 and isinstance(optimizer[1], dict):
        optimizer, kwargs = optimizer
    if isinstance(optimizer, str):
        classes = optimizer_classes()
        found = classes.get(optimizer.lower())
        if found is None:
            near = difflib.get_close_matches(optimizer.lower(), classes, n=3)
            raise UnknownNameError(
                f"unknown optimizer {optimizer!r}",
                f"nearest: {', '.join(near)}" if near else f"known: {', '.join(sorted(classes))}",
            )
        optimizer = found
    if isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            "an optimizer instance is bound to its own parameters and cannot be traced on others",
            "pass its name, (class, kwargs), or a function params -> Optimizer",
        )
    if inspect.isclass(optimizer) and issubclass(optimizer, torch.optim.Optimizer):
        cls = optimizer
        if issubclass(cls, torch.optim.LBFGS):
            raise InputError(
                "LBFGS calls a closure several times per step, which the reference loop does not have",
                "pass your own step(model, optimizer, batch) together with a function params -> Optimizer",
            )
        if one_by_one and "foreach" in inspect.signature(cls).parameters and not {"foreach", "fused"} & set(kwargs):
            kwargs = {**kwargs, "foreach": False}
        if inspect.signature(cls).parameters["lr"].default is inspect.Parameter.empty:
            kwargs = {"lr": 1e-3, **kwargs}
        arguments = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
        return _factory(cls, kwargs), f"{cls.__name__}({arguments})"
    if callable(optimizer):
        return optimizer, getattr(optimizer, "__qualname__", repr(optimizer))
    raise InputError(
        f"optimizer must be a name, (name, kwargs), a class or a function, not {type(optimizer).__name__}",
        'for example "adamw", "sgd(momentum=0.9)" or lambda params: MyOptimizer(params)',
    )


def _factory(cls: type[torch.optim.Optimizer], kwargs: dict[str, Any]) -> OptimizerFactory:
    def make(params: Any) -> torch.optim.Optimizer:
        try:
            return cls(params, **kwargs)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{cls.__name__} cannot be made with {kwargs}: {error}", f"see torch.optim.{cls.__name__}'s arguments"
            ) from error

    return make
