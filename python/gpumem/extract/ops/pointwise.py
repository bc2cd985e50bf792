"""Fast answers for pointwise ops whose result is like their input.

PyTorch computes the result of these ops on meta tensors in Python (`torch/_refs`), which takes most of a trace's time.
Where all tensors have one shape, dtype and dense layout, TensorIterator's result has them too; everything else goes to
PyTorch's own kernel. Families with handlers of their own come first: this file fills what they leave.
"""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extract.memory_format import is_dense
from gpumem.extract.ops.registry import HANDLERS
from gpumem.extract.recorder import Recorder

aten = torch.ops.aten

_LIKE_FIRST = (
    "abs", "elu", "erf", "exp", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "mish", "neg",
    "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "cos", "sqrt", "tanh",
)  # fmt: skip
_LIKE_BOTH = (
    "threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "hardswish_backward",
    "hardsigmoid_backward", "leaky_relu_backward", "mish_backward",
)  # fmt: skip
_ARITHMETIC = ("add", "sub", "mul", "div")
_IN_PLACE = (
    "relu_", "silu_", "hardswish_", "hardsigmoid_", "hardtanh_", "leaky_relu_", "gelu_", "sigmoid_", "tanh_", "elu_",
    "mish_",
)  # fmt: skip


def like_operands(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """The result of a pointwise op: fast when every tensor looks like the first, which must be floating and dense."""
    first = args[0]
    if not (isinstance(first, torch.Tensor) and first.is_meta and first.is_floating_point()) or kwargs:
        return func(*args, **kwargs)
    for other in args[1:]:
        if isinstance(other, torch.Tensor):
            if other.shape != first.shape or other.dtype != first.dtype or other.stride() != first.stride():
                return func(*args)
        elif isinstance(other, complex):
            return func(*args)
    if not first.is_contiguous() and not is_dense(first):
        return func(*args)
    return torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device="meta")


def _pointwise(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return like_operands(func, args, kwargs)


def _in_place(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = args[0]
    for other in args[1:]:
        if isinstance(other, torch.Tensor) and (other.shape != first.shape or other.dtype != first.dtype):
            return func(*args, **kwargs)
    return first if first.is_meta else func(*args, **kwargs)


def fill_gaps() -> None:
    """Register the fast answers for the ops that no family handles."""
    for name in (*_LIKE_FIRST, *_LIKE_BOTH):
        HANDLERS.setdefault(getattr(aten, name).default, _pointwise)
    for name in _ARITHMETIC:
        for overload in ("Tensor", "Scalar"):
            HANDLERS.setdefault(getattr(getattr(aten, name), overload), _pointwise)
            HANDLERS.setdefault(getattr(getattr(aten, f"{name}_"), overload), _in_place)
    for name in _IN_PLACE:
        HANDLERS.setdefault(getattr(aten, name).default, _in_place)
