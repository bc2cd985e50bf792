"""Grid sampling: cuDNN's kernel for the one case it computes (`ATen/native/GridSampler.cpp`)."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_BILINEAR, _ZEROS = 0, 0
_CUDNN_CHANNELS_MAX = 1024
_CUDNN_DTYPES = (torch.float16, torch.float32, torch.float64)


@chooses("grid_sampler")
def grid_sampler(
    x: torch.Tensor, grid: torch.Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> torch.Tensor:
    """`aten::grid_sampler`: cuDNN for bilinear sampling with zero padding and aligned corners."""
    output: torch.Tensor
    if (
        interpolation_mode == _BILINEAR
        and padding_mode == _ZEROS
        and align_corners
        and torch.backends.cudnn.enabled
        and x.dim() == 4
        and x.shape[1] <= _CUDNN_CHANNELS_MAX
        and x.dtype in _CUDNN_DTYPES
        and grid.dtype in _CUDNN_DTYPES
        and x.numel()
        and grid.numel()
    ):
        output = aten.cudnn_grid_sampler.default(x, grid)
        return output
    kernel = aten.grid_sampler_2d if x.dim() == 4 else aten.grid_sampler_3d
    output = kernel.default(x, grid, interpolation_mode, padding_mode, align_corners)
    return output


def _without_zero_strides(tmp: Temporaries, tensor: torch.Tensor) -> None:
    """`contiguousIfZeroInStrides`: cuDNN's descriptor takes any strides but zero."""
    if 0 in tensor.stride():
        tmp.alloc(tensor.numel() * tensor.element_size())


@handles(aten.cudnn_grid_sampler.default)
def cudnn_grid_sampler(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copies where cuDNN needs them, then the output."""
    x, grid = args
    with Temporaries(rec) as tmp:
        _without_zero_strides(tmp, x)
        tmp.contiguous(grid)
        shape = (x.shape[0], x.shape[1], grid.shape[1], grid.shape[2])
        output = torch.empty(shape, dtype=x.dtype, device="meta")
        rec.requested(output)
    return output


@handles(aten.cudnn_grid_sampler_backward.default)
def cudnn_grid_sampler_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copies where cuDNN needs them, then both gradients."""
    x, grid, grad = args
    with Temporaries(rec) as tmp:
        _without_zero_strides(tmp, x)
        tmp.contiguous(grid)
        _without_zero_strides(tmp, grad)
        grad_input = torch.empty(x.shape, dtype=x.dtype, device="meta")
        grad_grid = torch.empty(grid.shape, dtype=grid.dtype, device="meta")
        rec.requested(grad_input, grad_grid)
    return grad_input, grad_grid
