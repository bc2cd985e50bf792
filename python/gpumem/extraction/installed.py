"""What the installed torch does on a GPU that other versions do otherwise.

A trace is one of the installed torch: its Python code runs as it is, and what its CUDA code requests was compared with
each version's own on the virtual GPU (`benchmarks/results/versions.md`).
"""

from __future__ import annotations

import enum
import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@functools.cache
def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


# The oldest and the newest whose requests were compared.
_COMPARED = (2, 6), (2, 15)


def assumed() -> str | None:
    """What a report says when the installed torch was never compared with a GPU, real or virtual."""
    nearest = min(max(torch_version(), _COMPARED[0]), _COMPARED[1])
    if nearest == torch_version():
        return None
    major, minor = nearest
    return f"PyTorch {torch.__version__} was never compared: what its CUDA code requests is taken from {major}.{minor}"


def cublas_workspace_is_kept() -> bool:
    """Whether a handle's workspace stays from its first product on; later versions request one for each product."""
    return torch_version() < (2, 15)


class LtBuffer(enum.Enum):
    """Where a product that cuBLASLt computes has its workspace (1 MiB unless `CUBLASLT_WORKSPACE_SIZE` is set)."""

    SHARED = "cuBLAS's own workspace"
    KEPT = "a buffer of each handle, requested at the first product after cuBLAS's workspace and kept"
    OF_A_CALL = "a buffer of each call, requested before cuBLAS's workspace where that is kept"


def lt_buffer() -> LtBuffer:
    """What the installed torch does."""
    if torch_version() >= (2, 15) or torch_version() < (2, 9):
        return LtBuffer.OF_A_CALL
    return LtBuffer.SHARED if torch_version() >= (2, 12) else LtBuffer.KEPT


def linear_returns_a_view() -> bool:
    """Whether `linear` with a bias, of more than two dimensions, returns a view: then an op in place copies slices."""
    return torch_version() < (2, 15)


def foreach_norm_packs_chunks() -> bool:
    """Whether partial norms of a list lie without gaps between tensors, with a table of where they begin."""
    return torch_version() >= (2, 15)


def flash_attention_has_seeds_on_the_device() -> bool:
    """Whether flash attention returns its seeds as tensors of the device, with dropout and without."""
    return torch_version() >= (2, 7)


def efficient_attention_has_seeds_without_dropout() -> bool:
    """Whether efficient attention without dropout has two device scalars as its seed and offset."""
    return torch_version() >= (2, 14)


@functools.cache
def cached_casts_have_gradients() -> bool:
    """Whether a cast that is cached under `no_grad` serves a later gradient: newer versions of PyTorch make it so.

    Measured with the CPU's autocast, which shares the function with CUDA's.
    """
    weight = torch.zeros(1, 1, requires_grad=True)
    x = torch.zeros(1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            torch.mm(x, weight)
        return torch.mm(x, weight).requires_grad


@functools.cache
def inference_mode_caches_casts() -> bool:
    """Whether autocast keeps the weights it cast in inference mode.

    Measured with the CPU's autocast, which shares the function with CUDA's.
    """
    weight, x = torch.zeros(1, 1, requires_grad=True), torch.zeros(1, 1)
    casts = _Casts()
    # What `torch.inference_mode` enters; a trace puts another one in its place.
    guard: Any = torch._C._InferenceMode
    with guard(True), torch.autocast("cpu", torch.bfloat16), casts:
        for _ in range(2):
            torch.mm(x, weight)
    return casts.of.count(weight.data_ptr()) == 1


class _Casts(TorchDispatchMode):
    """Notes which tensors are cast."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let everything happen."""
        if func in (torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default):
            self.of.append(args[0].data_ptr())
        return func(*args, **(kwargs or {}))
