"""Batch norm (and instance norm, which calls it): cuDNN or PyTorch's own kernels.

Sources: `ATen/native/Normalization.cpp`, `cudnn/BatchNorm.cpp`, `cuda/Normalization.{cu,cuh}`; checked against the
virtual GPU (facts/cuda_on_meta.md 2.3). cuDNN's workspace and reserve need a live handle to be sized and
are taken as zero (facts/workspaces.md section 4). Synchronised batch norm is not modelled.
"""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.memory_format import suggest_memory_format
from gpumem.extraction.ops.reduction_scratch import WELFORD_INPUT_VEC, reduce_scratch
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries
from gpumem.extraction.tensor_iterator import empty_preserving

aten = torch.ops.aten
# Largest batches that cuDNN's spatial mode takes (`_select_batch_norm_backend`).
_CUDNN_BATCH_MAX_TRAINING = 880_801
_CUDNN_BATCH_MAX_EVAL = 65_535
# A partial Welford result: mean, second moment, and two counts.
_WELFORD_VALUES = 4
# Partial results of the channels_last kernels, per channel: Welford forward, two sums backward.
_CHANNELS_LAST_FORWARD_VALUES = 4
_CHANNELS_LAST_BACKWARD_VALUES = 2


def _accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _uses_cudnn(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
) -> bool:
    if not torch.backends.cudnn.enabled or weight is None or bias is None or x.dim() < 3:
        return False
    if torch.bfloat16 in (x.dtype, weight.dtype) or (x.dtype == torch.float16 and weight.dtype != torch.float32):
        return False
    if (running_mean is None) != (running_var is None) or (running_mean is None and not training):
        return False
    return x.shape[0] <= (_CUDNN_BATCH_MAX_TRAINING if training else _CUDNN_BATCH_MAX_EVAL)


@chooses("batch_norm")
def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """`aten::batch_norm`."""
    output: torch.Tensor
    if x.numel() and _uses_cudnn(x, weight, bias, running_mean, running_var, training):
        x = x.contiguous(memory_format=suggest_memory_format(x))
        output = aten.cudnn_batch_norm.default(x, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    else:
        output = aten.native_batch_norm.default(x, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    return output


@handles(aten.cudnn_batch_norm.default)
def cudnn_batch_norm(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Output, mean and inverse deviation (no statistics in evaluation), reserve."""
    x, weight, training = args[0], args[1], args[5]
    channels = x.shape[1] if training else 0
    output = torch.empty(x.shape, dtype=x.dtype, device="meta", memory_format=suggest_memory_format(x))
    mean = torch.empty(channels, dtype=weight.dtype, device="meta")
    invstd = torch.empty(channels, dtype=weight.dtype, device="meta")
    rec.requested(output, mean, invstd)
    return output, mean, invstd, torch.empty(0, dtype=torch.uint8, device="meta")


@handles(aten.cudnn_batch_norm_backward.default)
def cudnn_batch_norm_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy of the gradient in the input's layout, then the three gradients."""
    x, grad, weight = args[0], args[1], args[2]
    memory_format = suggest_memory_format(x)
    with Temporaries(rec) as tmp:
        tmp.contiguous(grad, memory_format)
        grad_input = torch.empty(x.shape, dtype=x.dtype, device="meta", memory_format=memory_format)
        grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
        grad_bias = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
        rec.requested(grad_input, grad_weight, grad_bias)
    return grad_input, grad_weight, grad_bias


def _is_channels_last(x: torch.Tensor) -> bool:
    """`batch_norm_use_channels_last_kernels`."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return True
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
        return True
    return x.is_contiguous() and x.stride(1) == 1


def _implementation(x: torch.Tensor) -> str:
    """`batch_norm_choose_impl`, for fewer than 2^31 elements."""
    if x.is_contiguous():
        return "channels_last" if x.stride(1) == 1 else "contiguous"
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    return "general"


def _channels_last_staging(rec: Recorder, x: torch.Tensor, values_per_channel: int) -> int:
    """The channels_last kernels' partial results and semaphores: stage 0 requests them, stage 1 frees them.

    Formula `batch_norm_channels_last`: `[rows, channels, values_per_channel, acc_itemsize]`.
    """
    channels = x.shape[1]
    itemsize = _accumulate_dtype(x.dtype).itemsize
    return rec.formula("batch_norm_channels_last", [x.numel() // channels, channels, values_per_channel, itemsize])


@handles(aten.native_batch_norm.default)
def native_batch_norm(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """PyTorch's own kernels: bf16, 2-d input, no affine parameters, pure fp16."""
    x, weight, bias, _, _, training = args[:6]
    if not x.is_meta or not x.numel():
        return func(*args, **kwargs)
    accumulate = _accumulate_dtype(x.dtype)
    output = empty_preserving(x)
    mean = torch.empty(x.shape[1], dtype=accumulate, device="meta")
    invstd = torch.empty(x.shape[1], dtype=accumulate, device="meta")
    rec.requested(output, mean, invstd)
    implementation = _implementation(x)
    with Temporaries(rec) as tmp:
        if training:
            if implementation == "channels_last":
                staging = _channels_last_staging(rec, x, _CHANNELS_LAST_FORWARD_VALUES)
                rec.stage(staging, 0)
                rec.stage(staging, 1)
            elif implementation == "general":
                _general_statistics(rec, x)
        if implementation == "general":
            # Absent affine parameters are broadcast from scalars.
            tmp.alloc(accumulate.itemsize if weight is None else 0)
            tmp.alloc(accumulate.itemsize if bias is None else 0)
    return output, mean, invstd


def _general_statistics(rec: Recorder, x: torch.Tensor) -> None:
    """`var_mean_out` into fp32: bf16 is cast first, fp16 is read as it is."""
    with Temporaries(rec) as tmp:
        source = x
        if x.dtype == torch.bfloat16:
            source = empty_preserving(x, torch.float32)
            tmp.alloc(source.untyped_storage().nbytes())
        accumulate_itemsize = _accumulate_dtype(x.dtype).itemsize
        reduce_scratch(
            rec, source, (0, *range(2, x.dim())), _WELFORD_VALUES * accumulate_itemsize, input_vec=WELFORD_INPUT_VEC
        )


@handles(aten.native_batch_norm_backward.default)
def native_batch_norm_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Backward of the own kernels, and of cuDNN's batch norm in evaluation mode."""
    grad, x, weight, running_mean, _, save_mean, save_invstd, training = args[:8]
    needs_input, needs_weight, needs_bias = args[9]
    if not x.is_meta or not x.numel():
        return func(*args, **kwargs)
    needs_sums = training or needs_weight or needs_bias
    if needs_sums and needs_input and not _is_channels_last(x):
        return _fused_backward(rec, grad, x, weight, needs_weight, needs_bias)
    accumulate = _accumulate_dtype(x.dtype)
    channels = x.shape[1]
    grad_input = grad_weight = grad_bias = None
    with Temporaries(rec) as tmp:
        if not save_mean.numel() and needs_sums and running_mean.dtype != accumulate:
            tmp.alloc(channels * accumulate.itemsize)
        if not save_invstd.numel():
            tmp.alloc(channels * accumulate.itemsize)
        if needs_sums:
            grad_weight, grad_bias = _sums(rec, tmp, grad, x, weight, needs_input, needs_weight, needs_bias)
        if needs_input:
            grad_input = _elementwise_backward(rec, tmp, grad, x, weight, training)
    return grad_input, grad_weight, grad_bias


def _fused_backward(
    rec: Recorder,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """`batch_norm_backward_cuda_template`: input and gradient as [N, C, L], then all gradients in one kernel."""
    with Temporaries(rec) as tmp:
        _reshape_copy(tmp, x)
        _reshape_copy(tmp, grad)
        grad_input = torch.empty(x.shape, dtype=x.dtype, device="meta")
        grad_weight = empty_preserving(weight) if needs_weight and weight is not None else None
        grad_bias = empty_preserving(weight) if needs_bias and weight is not None else None
        rec.requested(grad_input, grad_weight, grad_bias)
    return grad_input, grad_weight, grad_bias


def _reshape_copy(tmp: Temporaries, tensor: torch.Tensor) -> None:
    """`tensor.reshape({N, C, -1})`: a copy when the spatial dimensions cannot be merged."""
    expected = None
    for size, stride in zip(reversed(tensor.shape[2:]), reversed(tensor.stride()[2:]), strict=True):
        if size == 1:
            continue
        if expected is not None and stride != expected:
            tmp.alloc(tensor.numel() * tensor.element_size())
            return
        expected = stride * size


def _sums(
    rec: Recorder,
    tmp: Temporaries,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    needs_input: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """`batch_norm_backward_reduce_cuda`: two sums (temporaries of `tmp`), weight and bias gradients."""
    channels, itemsize = x.shape[1], _accumulate_dtype(x.dtype).itemsize
    grad_weight = grad_bias = None
    if _is_channels_last(grad) and _is_channels_last(x):
        tmp.alloc(channels * itemsize)
        tmp.alloc(channels * itemsize)
        if weight is not None:
            grad_weight, grad_bias = empty_preserving(weight), empty_preserving(weight)
            rec.requested(grad_weight, grad_bias)
        staging = _channels_last_staging(rec, x, _CHANNELS_LAST_BACKWARD_VALUES)
        rec.stage(staging, 0)
        rec.stage(staging, 1)
        return grad_weight, grad_bias
    with Temporaries(rec) as copies:
        _reshape_copy(copies, x)
        _reshape_copy(copies, grad)
        if needs_input:
            tmp.alloc(channels * itemsize)
            tmp.alloc(channels * itemsize)
        if weight is not None:
            grad_weight = empty_preserving(weight) if needs_weight else None
            grad_bias = empty_preserving(weight) if needs_bias else None
            rec.requested(grad_weight, grad_bias)
    return grad_weight, grad_bias


def _elementwise_backward(
    rec: Recorder, tmp: Temporaries, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, training: bool
) -> torch.Tensor:
    if not training:
        grad_input = torch.empty(x.shape, dtype=grad.dtype, device="meta")
    elif _implementation(x) == _implementation(grad) == "channels_last":
        grad_input = empty_preserving(x)
    else:
        if weight is None:
            tmp.alloc(_accumulate_dtype(x.dtype).itemsize)
        grad_input = torch.empty(x.shape, dtype=x.dtype, device="meta", memory_format=suggest_memory_format(x))
    rec.requested(grad_input)
    return grad_input
