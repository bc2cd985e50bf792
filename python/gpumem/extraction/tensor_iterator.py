"""Where TensorIterator puts the result of a pointwise kernel (`ATen/TensorIterator.cpp`), computed from the operands.

PyTorch's meta kernels of pointwise ops are Python decompositions, which are slow and whose strides differ from CUDA's
for broadcast or ambiguous operands. The layout decides whether the next kernel makes a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpumem.extraction.memory_format import is_contiguous, is_dense


def elementwise_output(
    operands: Sequence[torch.Tensor], dtype: torch.dtype | None = None, *, has_number: bool = False
) -> torch.Tensor:
    """An unrecorded meta tensor of the shape and strides of a pointwise kernel's result.

    Args:
        operands: The tensor operands in the kernel's order (which decides between layouts).
        dtype: Element type of the result; by default the first operand's.
        has_number: Whether a Python number is an operand too: it is a 0-d tensor to TensorIterator, which then takes
            its general path.
    """
    first = operands[0]
    dtype = first.dtype if dtype is None else dtype
    shape = first.shape
    same_shape = not has_number
    for operand in operands[1:]:
        if operand.shape != shape:
            same_shape = False
            shape = torch.broadcast_shapes(*(each.shape for each in operands))
            break
    if same_shape:
        memory_format = _common_format(operands)
        if memory_format is not None:
            return torch.empty(shape, dtype=dtype, device="meta", memory_format=memory_format)
        strides = first.stride()
        if all(operand.stride() == strides for operand in operands) and is_dense(first):
            return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    padded = [_broadcast_strides(operand, shape) for operand in operands]
    return torch.empty_strided(shape, dense_strides(shape, padded), dtype=dtype, device="meta")


def empty_preserving(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`torch.empty_like(tensor)` (preserve_format), unrecorded: its strides if dense, else dense in their order."""
    strides = tensor.stride()
    if not tensor.is_contiguous() and not is_dense(tensor):
        strides = tuple(dense_strides(tensor.shape, [strides]))
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype if dtype is None else dtype, device="meta")


def _common_format(operands: Sequence[torch.Tensor]) -> torch.memory_format | None:
    """The fast set-up: all contiguous, or all channels_last (a tensor that is both counts as contiguous)."""
    if all(operand.is_contiguous() for operand in operands):
        return torch.contiguous_format
    if all(is_contiguous(operand, torch.channels_last) for operand in operands):
        return torch.channels_last
    return None


def _broadcast_strides(operand: torch.Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    missing = len(shape) - operand.dim()
    own = (
        0 if size == 1 and shape[missing + dim] != 1 else stride
        for dim, (size, stride) in enumerate(zip(operand.shape, operand.stride(), strict=True))
    )
    return (*(0 for _ in range(missing)), *own)


def dense_strides(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> list[int]:
    """Strides of a new dense tensor whose dimensions are ordered as the operands' strides say.

    Args:
        shape: Its shape.
        operands: Strides of each operand, padded to `shape`; 0 where it is broadcast.
    """
    order = list(range(len(shape) - 1, -1, -1))
    for start in range(1, len(order)):
        moving = start
        for other in range(start - 1, -1, -1):
            comparison = _compare(order[other], order[moving], shape, operands)
            if comparison > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif comparison < 0:
                break
    strides = [0] * len(shape)
    running = 1
    for dim in order:
        strides[dim] = running
        running *= shape[dim]
    return strides


def _compare(dim0: int, dim1: int, shape: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """1: `dim0` is slower than `dim1`; -1: faster; 0: undecided, and the insertion sort looks further."""
    for strides in operands:
        stride0, stride1 = strides[dim0], strides[dim1]
        if stride0 == 0 or stride1 == 0:
            continue
        if stride0 != stride1:
            return 1 if stride0 > stride1 else -1
        if shape[dim0] > shape[dim1]:
            return 1
    return 0
