"""Shapes and kernel choice of a convolution, as `ATen/native/Convolution.cpp` decides them for CUDA.

A 1-d convolution is viewed as a 2-d one of height 1; everything here is after that view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpumem.extraction.memory_format import common_memory_format

# Smallest channel count and width for which a 16-bit depthwise convolution may leave the native kernel.
_CUDNN_DEPTHWISE_CHANNELS_MIN = 32
_CUDNN_DEPTHWISE_WIDTH_MIN = 7


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a convolution does besides its tensors; one integer per spatial dimension.

    Attributes:
        stride: Strides.
        padding: Padding on each side.
        dilation: Distance between kernel elements.
        transposed: Whether it is a transposed convolution.
        output_padding: Extra size on one side of a transposed convolution's output.
        groups: Channel groups.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls,
        spatial: int,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Geometry:
        """From ATen's arguments: single values are repeated, and 1-d becomes 2-d of height 1."""

        def expand(values: Sequence[int], unit: int) -> tuple[int, ...]:
            given = tuple(values) * spatial if len(values) == 1 else tuple(values)
            return (unit, *given) if spatial == 1 else given

        return cls(
            expand(stride, 1),
            expand(padding, 0),
            expand(dilation, 1),
            transposed,
            expand(output_padding, 0),
            groups,
        )

    def output_shape(self, x: torch.Tensor, weight: torch.Tensor) -> list[int]:
        """Shape of the result for this input and weight."""
        kernel = weight.shape[2:]
        if self.transposed:
            spatial = [
                (size - 1) * s - 2 * p + d * (k - 1) + extra + 1
                for size, k, s, p, d, extra in zip(
                    x.shape[2:], kernel, self.stride, self.padding, self.dilation, self.output_padding, strict=True
                )
            ]
            return [x.shape[0], weight.shape[1] * self.groups, *spatial]
        spatial = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(x.shape[2:], kernel, self.stride, self.padding, self.dilation, strict=True)
        ]
        return [x.shape[0], weight.shape[0], *spatial]


def cudnn_memory_format(x: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """`cudnn_conv_suggest_memory_format`: channels_last if either suggests it, never for fp64."""
    if x.dtype == torch.float64 or weight.dtype == torch.float64:
        return torch.contiguous_format
    return common_memory_format(x, weight)


def is_native_depthwise(x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> bool:
    """Whether PyTorch's own depthwise kernel runs instead of cuDNN (`ConvParams::use_cudnn_depthwise`).

    cuDNN takes channels_last, and fp16 in NCHW by a table of workloads that its authors measured.
    """
    channels = x.shape[1]
    if geometry.transposed or geometry.groups == 1 or channels != geometry.groups or weight.shape[0] % channels:
        return False
    if cudnn_memory_format(x, weight) != torch.contiguous_format:
        return False
    if x.dtype != torch.float16 or weight.dtype != torch.float16 or x.dim() != 4:
        return True
    if max(geometry.dilation) > 1 or channels < _CUDNN_DEPTHWISE_CHANNELS_MIN:
        return True
    if geometry.stride[0] != geometry.stride[1] and x.shape[2] != 1:
        return True
    return not _cudnn_is_faster(x, weight, geometry.stride[1])


def _cudnn_is_faster(x: torch.Tensor, weight: torch.Tensor, stride: int) -> bool:
    """`check_cudnn_depthwise_workload_with_filter`."""
    batch, channels, height, width = x.shape
    if height == 1 and stride == 1:
        return True
    kernel = weight.shape[3]
    if weight.shape[2] != kernel or kernel not in (1, 3, 5) or width < _CUDNN_DEPTHWISE_WIDTH_MIN:
        return False
    if stride != 2:
        return stride == 1
    if batch == 1:
        return kernel != 1 or width <= 28
    if kernel == 1:
        return batch <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)


def multiply_accumulates(x: torch.Tensor, weight: torch.Tensor, output: Sequence[int], geometry: Geometry) -> int:
    """Multiply-accumulate operations of one pass: every output (transposed: input) element reads one filter."""
    if geometry.transposed:
        return x.numel() * weight.shape[1] * math.prod(weight.shape[2:])
    return math.prod(output) * weight.shape[1] * math.prod(weight.shape[2:])
