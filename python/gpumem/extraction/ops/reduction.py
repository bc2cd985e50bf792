"""Reductions and scans: outputs, casts to the summation type, and the scratch of several blocks per output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpumem.extraction.ops.reduction_scratch import INPUT_VEC, WELFORD_INPUT_VEC, reduce_scratch
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_BOOL_BYTES = 1
# argmax, max.dim: an element and a 64-bit index, aligned.
_INDEXED_BYTES = 16
_WELFORD_NUMBERS = 4


def _argument(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """The argument of this name, wherever it was passed."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name)
    return None


def _dims(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[int] | None:
    dims = _argument(func, args, kwargs, "dim")
    return [dims] if isinstance(dims, int) else dims


@handles(
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.mean.default,
    aten.mean.dim,
    aten.nansum.default,
    aten.prod.default,
    aten.prod.dim_int,
    aten.linalg_vector_norm.default,
)
def summation(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output, then a cast copy of the input unless the kernel reads its type (16-bit into fp32), then scratch."""
    x = args[0]
    output = func(*args, **kwargs)
    if not output.is_meta:
        return output
    with Temporaries(rec) as tmp:
        rec.requested(output)
        itemsize = x.element_size()
        if x.dtype != output.dtype and not (x.dtype in _HALF and output.dtype == torch.float32):
            itemsize = output.element_size()
            tmp.alloc(x.numel() * itemsize)
        reduce_scratch(rec, x, _dims(func, args, kwargs), in_itemsize=itemsize)
    return output


def _register(ops: Sequence[Any], acc_itemsize: Any, input_vec: int = INPUT_VEC) -> None:
    def handler(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        x = args[0]
        if x.is_meta:
            rec.requested(output)
            reduce_scratch(rec, x, _dims(func, args, kwargs), acc_itemsize(x), input_vec=input_vec)
        return output

    handles(*ops)(handler)


_register([aten.amax.default, aten.amin.default, aten.max.default, aten.min.default], lambda x: x.element_size())
_register([aten.aminmax.default], lambda x: 2 * x.element_size())
_register(
    [aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims],
    lambda x: _BOOL_BYTES,
)
_register(
    [aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim],
    lambda x: _INDEXED_BYTES,
)
_register(
    [
        aten.var.correction,
        aten.std.correction,
        aten.var_mean.correction,
        aten.std_mean.correction,
    ],
    lambda x: _WELFORD_NUMBERS * max(4, x.element_size()),
    WELFORD_INPUT_VEC,
)


@handles(aten.trace.default)
def trace(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sum of the diagonal (`cuda/TriangularOps.cu`)."""
    x = args[0]
    output = func(*args, **kwargs)
    if output.is_meta:
        rec.requested(output)
        reduce_scratch(rec, x.diagonal())
    return output


@handles(aten.logsumexp.default)
def logsumexp(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Row maxima, a test of them for infinity, the differences (exponentiated in place), their sum: the result."""
    x, dims = args[0], args[1]
    output = func(*args, **kwargs)
    if not output.is_meta:
        return output
    rows_bytes = output.numel() * output.element_size()
    with Temporaries(rec) as tmp:
        maxima = tmp.alloc(rows_bytes)
        reduce_scratch(rec, x, dims, x.element_size())
        absolute = tmp.alloc(rows_bytes)
        infinite = tmp.alloc(output.numel())
        tmp.free(infinite, absolute)
        difference = tmp.alloc(x.numel() * output.element_size())
        rec.requested(output)
        reduce_scratch(rec, x, dims, in_itemsize=output.element_size())
        tmp.free(difference, maxima)
    return output


@handles(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
def cumulative(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output, a cast copy, a contiguous copy; vectors are scanned by CUB (formula `cub_scan`)."""
    x = args[0]
    output = func(*args, **kwargs)
    if not output.is_meta:
        return output
    with Temporaries(rec) as tmp:
        rec.requested(output)
        if x.dtype != output.dtype:
            tmp.alloc(output.numel() * output.element_size())
        else:
            tmp.contiguous(x)
        if x.dim() > 0 and x.numel() == x.shape[args[1]]:
            rec.scratch("cub_scan", [x.numel(), max(4, output.element_size())])
    return output


@chooses("cumprod_backward")
def cumprod_backward(grad: torch.Tensor, x: torch.Tensor, dim: int, output: torch.Tensor) -> torch.Tensor:
    """The formula for factors that are not zero: CUDA asks whether one is, tensors that count as subclass-like do not.

    With a zero CUDA goes on to several masks and scans (`ReduceOps.cpp`), which is not followed.
    """
    if x.numel() <= 1 or x.shape[dim] == 1:
        return grad
    weighted = output * grad
    is_zero = x == 0
    is_zero.any()
    # Temporaries of one C++ expression: they live to its end.
    backwards = weighted.flip(dim)
    sums = backwards.cumsum(dim)
    forwards = sums.flip(dim)
    del backwards, sums
    return forwards.div(x)
