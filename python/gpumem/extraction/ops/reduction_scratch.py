"""Scratch of PyTorch's generic CUDA reduction, asked for as a formula: it depends on the SM count (`Reduce.cuh`)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gpumem.extraction.recorder import Recorder

# Inputs that one thread reads at once along a contiguous reduced dimension (Reduce.cuh: input_vec_size).
INPUT_VEC = 4
WELFORD_INPUT_VEC = 2


def reduce_scratch(
    rec: Recorder,
    tensor: torch.Tensor,
    dims: Iterable[int] | None = None,
    acc_itemsize: int | None = None,
    in_itemsize: int | None = None,
    input_vec: int = INPUT_VEC,
) -> None:
    """Record the partial results and semaphores of reducing `tensor` over `dims`, requested and freed now.

    The formula `reduce` has the arguments `[acc_itemsize, input_vec, ndim, sizes*ndim, strides*ndim, reduced*ndim]`
    (strides in elements) and one stage; the core evaluates it for the GPU (`formula/reduce.rs`). Nothing is recorded
    when no dimension is reduced.

    Args:
        rec: The recorder.
        tensor: What the kernel reads; its sizes and strides decide the launch.
        dims: Reduced dimensions, negative ones counted from the end; None or none at all means all.
        acc_itemsize: Bytes of one partial result; by default that of a sum: at least 4 (16-bit is summed in fp32).
            amax, amin: the element; any, all: 1; argmax, max.dim: 16; aminmax: two elements; var, std: four sums.
        in_itemsize: Bytes of one element as the kernel reads it, where that is not the tensor's own (a cast copy).
        input_vec: `WELFORD_INPUT_VEC` for var and std.
    """
    ndim = tensor.dim()
    chosen = {dim % ndim for dim in dims or ()} if ndim else set()
    if not chosen:
        chosen = set(range(ndim))
    if not chosen:
        return
    item = tensor.element_size() if in_itemsize is None else in_itemsize
    accumulator = max(4, item) if acc_itemsize is None else acc_itemsize
    reduced = [int(dim in chosen) for dim in range(ndim)]
    rec.scratch("reduce", [accumulator, input_vec, ndim, *tensor.shape, *tensor.stride(), *reduced])
