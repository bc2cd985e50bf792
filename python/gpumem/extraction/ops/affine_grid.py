"""`affine_grid`: a base grid and a batched product. Source: `ATen/native/AffineGridGenerator.cpp`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from gpumem.extraction.ops.product_workspaces import cublas_call
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


def _base_grid(rec: Recorder, tmp: Temporaries, size: Sequence[int], itemsize: int, align_corners: bool) -> None:
    """Homogeneous coordinates of every pixel, filled from one range per axis, fastest axis first."""
    batch, spatial = size[0], size[2:]
    tmp.alloc(batch * math.prod(spatial) * (len(spatial) + 1) * itemsize)
    for steps in reversed(spatial):
        with Temporaries(rec) as ranges:
            first = ranges.alloc(steps * itemsize)
            if steps > 1 and not align_corners:
                # range * (steps - 1) / steps
                product = ranges.alloc(steps * itemsize)
                ranges.alloc(steps * itemsize)
                ranges.free(first, product)


@handles(aten.affine_grid_generator.default)
def affine_grid(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The base grid, then its product with each sample's matrix."""
    theta, size, align_corners = args
    if not theta.is_meta:
        return func(*args, **kwargs)
    spatial = size[2:]
    with Temporaries(rec) as tmp:
        _base_grid(rec, tmp, size, theta.element_size(), align_corners)
        grid = torch.empty((size[0], *spatial, len(spatial)), dtype=theta.dtype, device="meta")
        rec.requested(grid)
        cublas_call(rec)
        rec.count_flops(2 * grid.numel() * (len(spatial) + 1))
    return grid


@handles(aten.affine_grid_generator_backward.default)
def affine_grid_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The base grid again, a copy of the gradient if it cannot be viewed as rows, then the product."""
    grad, size, align_corners = args
    if not grad.is_meta:
        return func(*args, **kwargs)
    axes = len(size) - 2
    with Temporaries(rec) as tmp:
        _base_grid(rec, tmp, size, grad.element_size(), align_corners)
        tmp.contiguous(grad)
        gradient = torch.empty((size[0], axes + 1, axes), dtype=grad.dtype, device="meta")
        rec.requested(gradient)
        cublas_call(rec)
        rec.count_flops(2 * grad.numel() * (axes + 1))
    return gradient.transpose(1, 2)
