"""Convolution: layout copies, cuDNN workspaces and the order of outputs, by kernel.

Sources: `ATen/native/Convolution.cpp`, `cudnn/ConvShared.cpp`, `cuda/DepthwiseConv{2,3}d.cu`; checked against the
virtual GPU (facts/cuda_on_meta.md 2.3). Without cuDNN (`torch.backends.cudnn.enabled = False`) PyTorch's own im2col
kernels run, which are not modelled.
"""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.memory_format import is_contiguous, suggest_memory_format
from gpumem.extraction.ops.convolution_geometry import (
    Geometry,
    cudnn_memory_format,
    is_native_depthwise,
    multiply_accumulates,
)
from gpumem.extraction.ops.reduction_scratch import reduce_scratch
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_DTYPE_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 0, 1, 2


def _stand_in(tensor: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """What `tensor.contiguous(memory_format=...)` returns: itself, or an unrecorded tensor laid out like the copy."""
    if is_contiguous(tensor, memory_format):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", memory_format=memory_format)


def _tf32_allowed() -> bool:
    """The user's setting. The old flag may not be read once the one of torch 2.9 was set."""
    precision = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
    return torch.backends.cudnn.allow_tf32 if precision is None else precision == "tf32"


def _workspace(
    rec: Recorder,
    direction: int,
    image: torch.Tensor,
    result_shape: list[int] | torch.Size,
    weight: torch.Tensor,
    geometry: Geometry,
    memory_format: torch.memory_format,
) -> None:
    """cuDNN's workspace, requested here and freed at the end of the call.

    Formula `conv_workspace`: `[direction (0 forward, 1 input gradient, 2 weight gradient), dtype (0 fp32, 1 fp16,
    2 bf16), tf32_allowed, channels_last, transposed, groups, nd, batch, in_channels, out_channels, input_spatial*nd,
    kernel*nd, stride*nd, padding*nd, dilation*nd]` of the ordinary convolution that cuDNN computes. A transposed
    convolution is the input gradient of one, so it is recorded as that and `transposed` is always 0.

    Args:
        rec: The recorder.
        direction: Which of the three problems of the ordinary convolution.
        image: A tensor of the ordinary convolution's input shape, or any tensor when `result_shape` has it.
        result_shape: Shape of the ordinary convolution's input.
        weight: The weight.
        geometry: Stride, padding, dilation and groups.
        memory_format: The layout of all tensors of the call.
    """
    code = _DTYPE_CODES.get(image.dtype)
    if code is None:
        return
    rec.scratch(
        "conv_workspace",
        [
            direction,
            code,
            int(_tf32_allowed()),
            int(memory_format != torch.contiguous_format),
            0,
            geometry.groups,
            len(geometry.stride),
            result_shape[0],
            weight.shape[1] * geometry.groups,
            weight.shape[0],
            *result_shape[2:],
            *weight.shape[2:],
            *geometry.stride,
            *geometry.padding,
            *geometry.dilation,
        ],
    )


@handles(aten.convolution.default)
def convolution(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Every `convNd` and `conv_transposeNd`."""
    x, weight, bias = args[0], args[1], args[2]
    if not x.is_meta or not x.numel():
        return func(*args, **kwargs)
    spatial = weight.dim() - 2
    geometry = Geometry.of(spatial, *args[3:9])
    with Temporaries(rec) as tmp:
        if spatial == 1:
            tmp.contiguous(x)
            x, weight = _stand_in(x, torch.contiguous_format).unsqueeze(2), weight.unsqueeze(2)
        shape = geometry.output_shape(x, weight)
        rec.count_flops(2 * multiply_accumulates(x, weight, shape, geometry))
        if is_native_depthwise(x, weight, geometry):
            output = _depthwise(rec, x, weight, bias, shape)
        else:
            output = _cudnn(rec, x, weight, geometry, shape)
    return output.squeeze(2) if spatial == 1 else output


def _cudnn(rec: Recorder, x: torch.Tensor, weight: torch.Tensor, geometry: Geometry, shape: list[int]) -> torch.Tensor:
    memory_format = cudnn_memory_format(x, weight)
    with Temporaries(rec) as tmp:
        tmp.contiguous(x, memory_format)
        output = torch.empty(shape, dtype=x.dtype, device="meta", memory_format=memory_format)
        rec.requested(output)
        tmp.contiguous(weight, memory_format)
        if geometry.transposed:
            _workspace(rec, INPUT_GRADIENT, x, shape, weight, geometry, memory_format)
        else:
            _workspace(rec, FORWARD, x, x.shape, weight, geometry, memory_format)
    return output


def _depthwise(
    rec: Recorder, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: list[int]
) -> torch.Tensor:
    with Temporaries(rec) as tmp:
        tmp.contiguous(x)
        three_d = x.dim() == 5
        if not three_d:
            tmp.contiguous(weight)
            tmp.contiguous(bias)
        output = torch.empty(shape, dtype=x.dtype, device="meta")
        rec.requested(output)
        if three_d:
            tmp.contiguous(weight)
            tmp.contiguous(bias)
    return output


@handles(aten.convolution_backward.default)
def convolution_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients of a convolution: input, weight, bias, each if `output_mask` asks for it."""
    grad, x, weight = args[0], args[1], args[2]
    needs_input, needs_weight, needs_bias = args[10]
    if not x.is_meta or not x.numel():
        return func(*args, **kwargs)
    spatial = weight.dim() - 2
    geometry = Geometry.of(spatial, *args[4:10])
    grad_bias = None
    with Temporaries(rec) as tmp:
        if spatial == 1:
            tmp.contiguous(x)
            x = _stand_in(x, torch.contiguous_format).unsqueeze(2)
            weight, grad = weight.unsqueeze(2), grad.unsqueeze(2)
        passes = int(needs_input) + int(needs_weight)
        rec.count_flops(2 * passes * multiply_accumulates(x, weight, grad.shape, geometry))
        if is_native_depthwise(x, weight, geometry):
            backward = _depthwise_backward if x.dim() == 4 else _depthwise_backward_3d
            grad_input, grad_weight = backward(rec, grad, x, weight, needs_input, needs_weight)
        else:
            grad_input, grad_weight = _cudnn_backward(rec, grad, x, weight, geometry, needs_input, needs_weight)
        if spatial == 1:
            grad_input = None if grad_input is None else grad_input.squeeze(2)
            grad_weight = None if grad_weight is None else grad_weight.squeeze(2)
        if needs_bias:
            grad_bias = torch.empty(grad.shape[1], dtype=grad.dtype, device="meta")
            rec.requested(grad_bias)
            reduce_scratch(rec, grad, (0, *range(2, grad.dim())))
    return grad_input, grad_weight, grad_bias


_Gradients = tuple[torch.Tensor | None, torch.Tensor | None]


def _depthwise_backward(
    rec: Recorder, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, needs_input: bool, needs_weight: bool
) -> _Gradients:
    grad_input = grad_weight = None
    with Temporaries(rec) as tmp:
        tmp.contiguous(grad)
        if needs_weight:
            copy = tmp.contiguous(x)
            grad_weight = torch.empty(weight.shape, dtype=grad.dtype, device="meta")
            rec.requested(grad_weight)
            tmp.free(copy)
        if needs_input:
            copy = tmp.contiguous(weight)
            grad_input = torch.empty(x.shape, dtype=grad.dtype, device="meta")
            rec.requested(grad_input)
            tmp.free(copy)
    return grad_input, grad_weight


def _depthwise_backward_3d(
    rec: Recorder, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, needs_input: bool, needs_weight: bool
) -> _Gradients:
    grad_input = torch.empty(x.shape, dtype=grad.dtype, device="meta") if needs_input else None
    grad_weight = torch.empty(weight.shape, dtype=grad.dtype, device="meta") if needs_weight else None
    rec.requested(grad_input, grad_weight)
    with Temporaries(rec) as tmp:
        tmp.contiguous(grad)
        if needs_input:
            tmp.free(tmp.contiguous(weight))
        if needs_weight:
            tmp.free(tmp.contiguous(x))
    return grad_input, grad_weight


def _cudnn_backward(
    rec: Recorder,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    geometry: Geometry,
    needs_input: bool,
    needs_weight: bool,
) -> _Gradients:
    grad_input = grad_weight = None
    with Temporaries(rec) as tmp:
        if needs_weight:
            memory_format = cudnn_memory_format(x, weight)
            tmp.contiguous(x, memory_format)
            x = _stand_in(x, memory_format)
        wanted = suggest_memory_format(x)
        if geometry.transposed:
            tmp.contiguous(grad, wanted)
            grad = _stand_in(grad, wanted)
        elif suggest_memory_format(grad) != wanted:
            # `grad.to(memory_format)`: compares what the strides suggest, then always copies.
            tmp.alloc(grad.numel() * grad.element_size())
            grad = torch.empty(grad.shape, dtype=grad.dtype, device="meta", memory_format=wanted)
        if needs_input:
            grad_input = _input_gradient(rec, grad, x.shape, weight, geometry)
        if needs_weight:
            grad_weight = _weight_gradient(rec, grad, x, weight, geometry)
    return grad_input, grad_weight


def _input_gradient(
    rec: Recorder, grad: torch.Tensor, shape: torch.Size, weight: torch.Tensor, geometry: Geometry
) -> torch.Tensor:
    memory_format = cudnn_memory_format(grad, weight)
    grad_input = torch.empty(shape, dtype=grad.dtype, device="meta", memory_format=memory_format)
    rec.requested(grad_input)
    with Temporaries(rec) as tmp:
        tmp.contiguous(weight, memory_format)
        tmp.contiguous(grad, memory_format)
        if geometry.transposed:
            _workspace(rec, FORWARD, grad, grad.shape, weight, geometry, memory_format)
        else:
            _workspace(rec, INPUT_GRADIENT, grad, shape, weight, geometry, memory_format)
    return grad_input


def _weight_gradient(
    rec: Recorder, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, geometry: Geometry
) -> torch.Tensor:
    # A transposed convolution's input is the output of the ordinary one.
    image, result = (grad, x) if geometry.transposed else (x, grad)
    memory_format = cudnn_memory_format(image, result)
    with Temporaries(rec) as tmp:
        tmp.contiguous(result, memory_format)
        tmp.contiguous(image, memory_format)
        grad_weight = torch.empty(weight.shape, dtype=grad.dtype, device="meta", memory_format=memory_format)
        rec.requested(grad_weight)
        _workspace(rec, WEIGHT_GRADIENT, image, image.shape, weight, geometry, memory_format)
    return grad_weight
