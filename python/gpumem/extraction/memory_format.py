"""Memory formats as c10 computes them (`c10/core/MemoryFormat.h`), including the ambiguous cases."""

from __future__ import annotations

import torch

_ORDER = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}
_FORMAT = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggest_memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """`tensor.suggest_memory_format()` of C++: channels_last when the strides say so, also for 1x1 maps."""
    dims = tensor.dim()
    if dims not in _ORDER:
        return torch.contiguous_format
    strides, sizes = tensor.stride(), tensor.shape
    if strides[1] == 0:
        return torch.contiguous_format
    smallest = 0
    for dim in _ORDER[dims]:
        if sizes[dim] == 0 or strides[dim] < smallest:
            return torch.contiguous_format
        # A 1x1 map or single channel fits both formats: N's stride equal to C's decides for contiguous.
        if dim == 0 and smallest == strides[1]:
            return torch.contiguous_format
        smallest = strides[dim] * max(sizes[dim], 1)
    return _FORMAT[dims]


def common_memory_format(*tensors: torch.Tensor | None) -> torch.memory_format:
    """The format that convolution and pooling choose: channels_last if any of the tensors suggests it."""
    for tensor in tensors:
        if tensor is not None:
            suggested = suggest_memory_format(tensor)
            if suggested != torch.contiguous_format:
                return suggested
    return torch.contiguous_format


def is_contiguous(tensor: torch.Tensor, memory_format: torch.memory_format) -> bool:
    """`tensor.is_contiguous(memory_format=...)`, False where the format does not exist for its dimensions."""
    if memory_format == torch.channels_last and tensor.dim() != 4:
        return False
    if memory_format == torch.channels_last_3d and tensor.dim() != 5:
        return False
    return tensor.is_contiguous(memory_format=memory_format)


def is_dense(tensor: torch.Tensor) -> bool:
    """Non-overlapping and dense: the elements fill their storage range in some order of the dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True
