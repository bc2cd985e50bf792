"""The list of operations that PyTorch's own (`op_db`) has not; `math_ops`, `layer_ops` and `device_ops` fill it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

Case = Callable[[], object]

CASES: dict[str, Case] = {}
WHEN_NAMED: dict[str, Case] = {"more:ends_the_process": lambda: ctypes.string_at(0)}
"""To see that a crash is noticed."""

CUDA = torch.device("cuda")


def case(function: Case) -> Case:
    """Put a function on the list."""
    CASES[f"more:{function.__name__}"] = function
    return function


def rand(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device=CUDA, dtype=dtype).requires_grad_(grad)
