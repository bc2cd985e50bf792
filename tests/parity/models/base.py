"""What the families share."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

# Values never matter here, and filling gigabytes of weights takes most of the time of building a model. `trunc_normal_`
# loops until its values fit, so `normal_` and `uniform_` are suppressed together with torch.nn.init, never alone.
_FILLING = frozenset({"normal_", "uniform_", "erfinv_", "trunc_normal_"})


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model on the host and the tree of `TensorSpec` that it takes."""

    model: nn.Module
    inputs: Any


class _NoFilling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _FILLING:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _unfilled(tensor: Any = None, *args: Any, **kwargs: Any) -> Any:
    return tensor


@contextlib.contextmanager
def initialisers_suppressed() -> Iterator[None]:
    """While active, `torch.nn.init` and random in-place fills leave tensors as they are."""
    saved = {
        name: value
        for name, value in vars(torch.nn.init).items()
        # A library that has taken `trunc_normal_` itself still calls `_no_grad_trunc_normal_` here, and would draw on.
        if name.endswith("_") and (not name.startswith("_") or name.startswith("_no_grad_")) and callable(value)
    }
    try:
        for name in saved:
            setattr(torch.nn.init, name, _unfilled)
        with _NoFilling():
            yield
    finally:
        for name, value in saved.items():
            setattr(torch.nn.init, name, value)
