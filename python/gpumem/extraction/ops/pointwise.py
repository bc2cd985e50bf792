"""Fast answers for pointwise ops whose result is like their input.

PyTorch computes the result of these ops on meta tensors in Python (`torch/_refs`), which takes most of a trace's time
and does not always lay the result out as CUDA does. Where all tensors are floating and of one type, the layout of
TensorIterator's result is computed instead (`tensor_iterator.py`); everything else goes to PyTorch's own kernel.
Families with handlers of their own come first: this file fills what they leave.
"""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import HANDLERS, handles
from gpumem.extraction.recorder import Recorder, Temporaries
from gpumem.extraction.tensor_iterator import elementwise_output

aten = torch.ops.aten
# Python integers become int64, floats double (`c10::scalar_to_tensor`).
_SCALAR_TENSOR_BYTES = 8
_LIKE_FIRST = (
    "abs", "elu", "erf", "exp", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log", "mish", "neg",
    "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "sin", "cos", "sqrt", "tanh",
)  # fmt: skip
_LIKE_BOTH = (
    "threshold_backward", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "hardswish_backward",
    "hardsigmoid_backward", "hardtanh_backward", "leaky_relu_backward", "mish_backward", "elu_backward",
    "softplus_backward",
)  # fmt: skip
_ARITHMETIC = ("add", "sub", "mul", "div")
# A number that is an operand of TensorIterator, not a parameter of the kernel.
_NUMBER_OPERAND = frozenset(
    getattr(getattr(aten, name), overload) for name in _ARITHMETIC for overload in ("Tensor", "Scalar")
)
# Kernels that list the saved tensor before the gradient (`Activation.cpp`).
_SECOND_OPERAND_FIRST = frozenset((aten.threshold_backward.default, aten.leaky_relu_backward.default))
_IN_PLACE = (
    "relu_", "silu_", "hardswish_", "hardsigmoid_", "hardtanh_", "leaky_relu_", "gelu_", "sigmoid_", "tanh_", "elu_",
    "mish_",
)  # fmt: skip
_FOREACH_IN_PLACE = (
    "_foreach_abs_", "_foreach_add_", "_foreach_addcdiv_", "_foreach_addcmul_", "_foreach_clamp_max_",
    "_foreach_clamp_min_", "_foreach_copy_", "_foreach_div_", "_foreach_lerp_", "_foreach_maximum_",
    "_foreach_minimum_", "_foreach_mul_", "_foreach_neg_", "_foreach_pow_", "_foreach_reciprocal_",
    "_foreach_rsqrt_", "_foreach_sign_", "_foreach_sqrt_", "_foreach_sub_", "_foreach_zero_",
)  # fmt: skip


def _own_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    output: torch.Tensor = func(*args, **kwargs)
    return output


def like_operands(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """The result of a pointwise op of floating tensors of one type; anything else goes to PyTorch's own kernel."""
    first = args[0]
    if not (isinstance(first, torch.Tensor) and first.is_meta and first.is_floating_point()) or kwargs:
        return _own_kernel(func, args, kwargs)
    operands = [first]
    has_number = False
    for other in args[1:]:
        if isinstance(other, torch.Tensor):
            if other.dtype != first.dtype or not other.is_meta:
                return _own_kernel(func, args, kwargs)
            operands.append(other)
        elif isinstance(other, complex):
            return _own_kernel(func, args, kwargs)
        elif func in _NUMBER_OPERAND:
            has_number = True
    if func in _SECOND_OPERAND_FIRST:
        operands.reverse()
    return elementwise_output(operands, has_number=has_number)


def _pointwise(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return like_operands(func, args, kwargs)


def _in_place(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = args[0]
    for other in args[1:]:
        if isinstance(other, torch.Tensor) and (other.shape != first.shape or other.dtype != first.dtype):
            return func(*args, **kwargs)
    return first if first.is_meta else func(*args, **kwargs)


@handles(aten.pow.Scalar)
def pow_scalar(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A number to the power of a tensor: the base is put on the device as int64 or double, unless it is one."""
    base, exponent = args
    output = func(*args, **kwargs)
    if exponent.is_meta:
        rec.requested(output)
        if base != 1:
            with Temporaries(rec) as tmp:
                tmp.alloc(_SCALAR_TENSOR_BYTES)
    return output


def _foreach_in_place(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One kernel, or one in-place op per tensor: no request either way."""
    return None if args[0] and args[0][0].is_meta else func(*args, **kwargs)


def fill_gaps() -> None:
    """Register the fast answers for the ops that no family handles."""
    for name in _FOREACH_IN_PLACE:
        packet = getattr(aten, name, None)
        for overload in () if packet is None else packet.overloads():
            if not overload.endswith("out"):
                HANDLERS.setdefault(getattr(packet, overload), _foreach_in_place)
    for name in (*_LIKE_FIRST, *_LIKE_BOTH):
        HANDLERS.setdefault(getattr(aten, name).default, _pointwise)
    for name in _ARITHMETIC:
        for overload in ("Tensor", "Scalar"):
            HANDLERS.setdefault(getattr(getattr(aten, name), overload), _pointwise)
            HANDLERS.setdefault(getattr(getattr(aten, f"{name}_"), overload), _in_place)
    for name in _IN_PLACE:
        HANDLERS.setdefault(getattr(aten, name).default, _in_place)
