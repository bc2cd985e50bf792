"""What a CUDA kernel refuses: shapes, types and devices of operands, for ops whose handlers do not ask PyTorch.

A handler computes a result from shapes alone. Without these checks a model that fails on CUDA would be answered with a
number. The texts are those of the CUDA kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gpumem.extraction.overloads import overload

aten = torch.ops.aten
Check = Callable[[tuple[Any, ...]], None]

CHECKS: dict[Any, Check] = {}
"""ATen overload to the function that raises for operands it would refuse. Pointwise ops are added when first seen."""


def one_device(operands: Iterable[Any]) -> None:
    """Raise when tensors on the device meet host tensors that are more than a number."""
    on_host = on_device = False
    for operand in operands:
        if isinstance(operand, torch.Tensor):
            if operand.is_meta:
                on_device = True
            elif operand.dim():
                on_host = True
    if on_host and on_device:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        )


def _checks(*ops: Any) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        for op in ops:
            CHECKS[op] = check
        return check

    return register


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


@_checks(aten.convolution.default)
def _convolution(args: tuple[Any, ...]) -> None:
    x, weight, transposed, groups = args[0], args[1], args[6], args[8]
    one_device(args[:3])
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.dim() == weight.dim() and x.shape[1] != channels:
        what = f"transposed={int(transposed)}" if transposed else f"groups={groups}"
        raise RuntimeError(
            f"Given {what}, weight of size {list(weight.shape)}, expected input{list(x.shape)} to have {channels} "
            f"channels, but got {x.shape[1]} channels instead"
        )
    if x.dtype != weight.dtype:
        raise RuntimeError(f"Input type ({x.dtype}) and weight type ({weight.dtype}) should be the same")
    if transposed:
        return
    padding, dilation = args[4], args[5]
    for dim, size in enumerate(x.shape[2:]):
        pad, dilate = padding[dim if len(padding) > 1 else 0], dilation[dim if len(dilation) > 1 else 0]
        padded, reach = size + 2 * pad, dilate * (weight.shape[dim + 2] - 1) + 1
        if padded < reach:
            raise RuntimeError(
                f"Calculated padded input size {padded} of dimension {dim + 2} is smaller than the kernel's {reach}: "
                "Kernel size can't be greater than actual input size"
            )


@_checks(aten.mm.default, aten.bmm.default)
def _product(args: tuple[Any, ...]) -> None:
    _factors(args[0], args[1])


@_checks(aten.addmm.default, aten.baddbmm.default)
def _product_plus(args: tuple[Any, ...]) -> None:
    one_device(args[:1] + args[1:3])
    _factors(args[1], args[2])


def _factors(left: torch.Tensor, right: torch.Tensor) -> None:
    one_device((left, right))
    if left.shape[-1] != right.shape[-2] or left.shape[:-2] != right.shape[:-2]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({_shape_text(left.shape)} and {_shape_text(right.shape)})"
        )
    if left.dtype != right.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {left.dtype} and {right.dtype}")


@_checks(aten.cudnn_batch_norm.default, aten.native_batch_norm.default)
def _batch_norm(args: tuple[Any, ...]) -> None:
    x = args[0]
    one_device(args[:5])
    channels = x.shape[1]
    for name, values in zip(("weight", "bias", "running_mean", "running_var"), args[1:5], strict=True):
        if values is not None and values.numel() != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {values.numel()}")


@_checks(aten.native_layer_norm.default, overload("_fused_rms_norm"))
def _layer_norm(args: tuple[Any, ...]) -> None:
    x, normalized = args[0], list(args[1])
    one_device((x, *args[2:4]))
    if list(x.shape[x.dim() - len(normalized) :]) != normalized:
        sizes = ", ".join(map(str, normalized))
        raise RuntimeError(
            f"Given normalized_shape={normalized}, expected input with shape [*, {sizes}], "
            f"but got input of size{list(x.shape)}"
        )


@_checks(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(args: tuple[Any, ...]) -> None:
    x, kernel = args[0], args[1]
    dims = 2 if len(kernel) == 2 or x.dim() == 3 else 3
    padding = args[3] if len(args) > 3 else [0]
    dilation = args[4] if len(args) > 4 else [1]
    for dim in range(-min(dims, len(x.shape)), 0):
        pick = [values[dim] if len(values) > 1 else values[0] for values in (kernel, padding, dilation)]
        if x.shape[dim] + 2 * pick[1] < pick[2] * (pick[0] - 1) + 1:
            raise RuntimeError(f"Given input size: ({_shape_text(x.shape[1:])}): the pooled output size is too small")


@_checks(aten._softmax.default, aten._log_softmax.default)
def _softmax(args: tuple[Any, ...]) -> None:
    x, dim = args[0], args[1]
    dims = max(x.dim(), 1)
    if not -dims <= dim < dims:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-dims}, {dims - 1}], but got {dim})")
