"""Pooling, as `ATen/native/cuda/{DilatedMaxPool,AveragePool,Adaptive*Pooling}*.cu`; checked on the virtual GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpumem.extraction.memory_format import suggest_memory_format
from gpumem.extraction.ops.copies import outputs_then_copies
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


def _pooled_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """`pooling_output_shape` of `ATen/native/Pool.h`."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    pooled = (reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    # The last window must start inside the input or its left padding.
    return pooled - 1 if ceil_mode and (pooled - 1) * stride >= size + padding else pooled


def _expand(values: Sequence[int], dims: int) -> list[int]:
    return list(values) * dims if len(values) == 1 else list(values)


def _pooled_shape(x: torch.Tensor, dims: int, window: Sequence[Any]) -> list[int]:
    kernel = _expand(window[0], dims)
    stride = _expand(window[1], dims) if len(window) > 1 and window[1] else kernel
    padding = _expand(window[2], dims) if len(window) > 2 else [0] * dims
    dilation = _expand(window[3], dims) if len(window) > 3 else [1] * dims
    ceil_mode = window[4] if len(window) > 4 else False
    spatial = [
        _pooled_size(*sizes, ceil_mode)
        for sizes in zip(x.shape[-dims:], kernel, stride, padding, dilation, strict=True)
    ]
    return [*x.shape[:-dims], *spatial]


def _max_pool(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dims: int) -> Any:
    x = args[0]
    if not x.is_meta or kwargs:
        return func(*args, **kwargs)
    memory_format = suggest_memory_format(x)
    shape = _pooled_shape(x, dims, args[1:])
    output = torch.empty(shape, dtype=x.dtype, device="meta", memory_format=memory_format)
    indices = torch.empty(shape, dtype=torch.int64, device="meta", memory_format=memory_format)
    rec.requested(output, indices)
    with Temporaries(rec) as tmp:
        tmp.contiguous(x, memory_format)
    return output, indices


@handles(aten.max_pool2d_with_indices.default)
def max_pool2d(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Output and indices in the input's layout, then a copy of the input in it. `max_pool1d` comes here too."""
    return _max_pool(rec, func, args, kwargs, 2)


@handles(aten.max_pool3d_with_indices.default)
def max_pool3d(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `max_pool2d`."""
    return _max_pool(rec, func, args, kwargs, 3)


def _max_pool_backward(
    rec: Recorder, grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor, copies_input: bool
) -> torch.Tensor:
    memory_format = suggest_memory_format(x)
    output = torch.empty(x.shape, dtype=x.dtype, device="meta", memory_format=memory_format)
    rec.requested(output)
    with Temporaries(rec) as tmp:
        if copies_input:
            tmp.contiguous(x, memory_format)
        tmp.contiguous(grad, memory_format)
        tmp.contiguous(indices, memory_format)
    return output


@handles(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The input's gradient, then copies of input, gradient and indices in the input's layout."""
    if not args[0].is_meta:
        return func(*args, **kwargs)
    return _max_pool_backward(rec, args[0], args[1], args[7], copies_input=True)


@handles(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `max_pool2d_backward`, without a copy of the input."""
    if not args[0].is_meta:
        return func(*args, **kwargs)
    return _max_pool_backward(rec, args[0], args[1], args[7], copies_input=False)


handles(aten.avg_pool2d.default)(outputs_then_copies(0, layout_of=0))
handles(aten.avg_pool2d_backward.default)(outputs_then_copies(1, 0, layout_of=1))
handles(aten.avg_pool3d.default)(outputs_then_copies(0))
handles(aten.avg_pool3d_backward.default)(outputs_then_copies(0))


@handles(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Channels_last: the output. Otherwise a contiguous copy of the input first."""
    x, size = args
    if not x.is_meta:
        return func(*args, **kwargs)
    memory_format = suggest_memory_format(x)
    with Temporaries(rec) as tmp:
        if memory_format == torch.contiguous_format and x.dim() == 4:
            tmp.contiguous(x)
        shape = [*x.shape[:-2], *size]
        output = torch.empty(shape, dtype=x.dtype, device="meta", memory_format=memory_format)
        rec.requested(output)
    return output


@handles(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The input's gradient; a contiguous copy of the gradient unless the input is channels_last."""
    grad, x = args
    if not x.is_meta:
        return func(*args, **kwargs)
    memory_format = suggest_memory_format(x)
    output = torch.empty(x.shape, dtype=x.dtype, device="meta", memory_format=memory_format)
    rec.requested(output)
    with Temporaries(rec) as tmp:
        if memory_format == torch.contiguous_format:
            tmp.contiguous(grad)
    return output


@handles(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A contiguous copy of the input, then the output."""
    x, size = args
    if not x.is_meta:
        return func(*args, **kwargs)
    with Temporaries(rec) as tmp:
        if x.dim() == 5:
            tmp.contiguous(x)
        output = torch.empty([*x.shape[:-3], *size], dtype=x.dtype, device="meta")
        rec.requested(output)
    return output


handles(aten._adaptive_avg_pool3d_backward.default)(outputs_then_copies(0))


def _contiguous_result(tmp: Temporaries, *outputs: torch.Tensor) -> None:
    """The kernel writes a contiguous tensor and copies it into an output that is not."""
    for output in outputs:
        tmp.contiguous(output)


@handles(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Output and indices, contiguous stand-ins for them, and a contiguous copy of the input."""
    x = args[0]
    outputs = func(*args, **kwargs)
    if x.is_meta:
        rec.requested(outputs)
        with Temporaries(rec) as tmp:
            _contiguous_result(tmp, *outputs)
            if x.dim() == 4:
                tmp.contiguous(x)
    return outputs


@handles(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The input's gradient, contiguous copies, and a contiguous stand-in for the result."""
    output = func(*args, **kwargs)
    if output.is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            tmp.contiguous(args[0])
            tmp.contiguous(args[2])
            _contiguous_result(tmp, output)
    return output


handles(aten.adaptive_max_pool3d.default)(outputs_then_copies(0))
handles(aten.adaptive_max_pool3d_backward.default)(outputs_then_copies(0))


@handles(aten.max_unpool2d.default, aten.max_unpool3d.default)
def max_unpool(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Contiguous copies of input and indices, then the output."""
    x, indices, size = args[:3]
    if not x.is_meta:
        return func(*args, **kwargs)
    with Temporaries(rec) as tmp:
        tmp.contiguous(x)
        tmp.contiguous(indices)
        output = torch.empty([*x.shape[: x.dim() - len(size)], *size], dtype=x.dtype, device="meta")
        rec.requested(output)
    return output


handles(aten.fractional_max_pool2d_backward.default)(outputs_then_copies(0))
