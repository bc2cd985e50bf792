"""Which attention kernel `scaled_dot_product_attention` calls on a CUDA device.

The rules are those of `ATen/native/transformers/cuda/sdp_utils.cpp` (torch 2.14; earlier 2.x versions differ in what is
noted at each rule). Checked against the virtual GPU for capability 8.0, 8.6 and 9.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from gpumem.extraction.installed import torch_version
from gpumem.extraction.target import current_target

_C: Any = torch._C
_HALF = (torch.float16, torch.bfloat16)
# Values of `at::SDPBackend`, as `torch._C._get_sdp_priority_order` returns them.
_NAMES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
_DEFAULT_ORDER = (1, 2, 0, 3)
_CUDNN_FIRST = (3, 1, 2, 0)
# One head of key and value reaches the fused kernels without `enable_gqa` (virtual GPU; 2.8 takes the math path).
_SINGLE_HEAD_SINCE = (2, 14)
# cuDNN's dimension limit for batch and heads.
_CUDNN_MAX_DIM = 65535


@dataclass(frozen=True)
class Attention:
    """One call of `scaled_dot_product_attention`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    gqa: bool

    @property
    def needs_grad(self) -> bool:
        """Whether the call is differentiated, so that the kernel leaves its log-sum-exp."""
        return torch.is_grad_enabled() and (
            self.query.requires_grad or self.key.requires_grad or self.value.requires_grad
        )


def _priority(capability: tuple[int, int]) -> tuple[int, ...]:
    order = tuple(_C._get_sdp_priority_order())[:4] if hasattr(_C, "_get_sdp_priority_order") else _DEFAULT_ORDER
    # torch 2.10 and later ship cuDNN > 9.15 and prefer it on Hopper and data-centre Blackwell, unless the user set an
    # order. A build without CUDA never asks, so its order is the default one.
    if order == _DEFAULT_ORDER and capability[0] in (9, 10) and torch_version() >= (2, 10):
        return _CUDNN_FIRST
    return order


def choose_backend(call: Attention) -> str:
    """`flash`, `efficient`, `cudnn` or `math`, for the GPU of the running trace."""
    capability = current_target().capability
    for backend in _priority(capability):
        name = _NAMES.get(backend)
        if name == "math" and _C._get_math_sdp_enabled():
            return name
        if name == "flash" and _flash(call, capability):
            return name
        if name == "efficient" and _efficient(call, capability):
            return name
        if name == "cudnn" and _cudnn(call, capability):
            return name
    return "math"


def _tensors(call: Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return call.query, call.key, call.value


def _is_dense_batch(call: Attention) -> bool:
    """4-d, no empty dimension, one batch size."""
    return (
        all(t.dim() == 4 and t.numel() > 0 for t in _tensors(call))
        and call.query.shape[0] == call.key.shape[0] == call.value.shape[0]
    )


def _grouped(call: Attention) -> bool:
    """Whether fused kernels may share heads of key and value: `enable_gqa`, or one head of each."""
    return call.gqa or (call.key.shape[1] == call.value.shape[1] == 1 and torch_version() >= _SINGLE_HEAD_SINCE)


def _heads_allowed(call: Attention) -> bool:
    """Equal head counts; with grouped queries (torch >= 2.5) those of key and value may divide the query's."""
    heads, key_heads, value_heads = (t.shape[1] for t in _tensors(call))
    if heads == key_heads == value_heads:
        return True
    return _grouped(call) and key_heads == value_heads and heads % key_heads == 0


def _last_dim_contiguous(call: Attention, ignore_singleton: bool) -> bool:
    if call.mask is not None and call.mask.stride(-1) != 1 and not (ignore_singleton and call.mask.shape[-1] == 1):
        return False
    return all(t.stride(-1) == 1 or (ignore_singleton and t.shape[-1] == 1) for t in _tensors(call))


def _dtypes_in(call: Attention, allowed: tuple[torch.dtype, ...]) -> bool:
    return call.query.dtype in allowed and call.query.dtype == call.key.dtype == call.value.dtype


def _flash(call: Attention, capability: tuple[int, int]) -> bool:
    dim = call.query.shape[-1]
    if (
        not _C._get_flash_sdp_enabled()
        or not (8, 0) <= capability <= (12, 1)
        or not _dtypes_in(call, _HALF)
        or call.mask is not None
        or dim > 256
        or not dim == call.key.shape[-1] == call.value.shape[-1]
        or not _is_dense_batch(call)
        or not _heads_allowed(call)
        or not _last_dim_contiguous(call, ignore_singleton=True)
        or (call.causal and call.query.shape[2] != call.key.shape[2])
    ):
        return False
    small_shared_memory = (8, 6) <= capability <= (8, 9) or capability in ((12, 0), (12, 1))
    # Backward needs more shared memory than these cards have: 193-224 never, 225-256 only without dropout.
    return not (small_shared_memory and call.needs_grad and dim > 192 and not (call.dropout == 0.0 and dim > 224))


def minimum_alignment(capability: tuple[int, int], dtype: torch.dtype) -> int:
    """Elements to which the efficient kernel wants the head dimension aligned."""
    half = dtype in _HALF
    alignment = 4 if capability >= (8, 0) else 1
    if capability >= (8, 0) or (capability >= (7, 0) and half):
        alignment = max(alignment, 8 if half else 4)
    return alignment


def _efficient(call: Attention, capability: tuple[int, int]) -> bool:
    dtypes = (*_HALF, torch.float32) if capability >= (8, 0) else (torch.float16, torch.float32)
    alignment = minimum_alignment(capability, call.query.dtype)
    dim, value_dim = call.query.shape[-1], call.value.shape[-1]
    if (
        not _C._get_mem_efficient_sdp_enabled()
        or not _dtypes_in(call, dtypes)
        or not _is_dense_batch(call)
        or dim != call.key.shape[-1]
        or dim % alignment
        or value_dim % alignment
        or not _last_dim_contiguous(call, ignore_singleton=False)
        or not _heads_allowed(call)
    ):
        return False
    # torch 2.14 also checks that the storage offsets are aligned.
    return capability < (8, 0) or all(t.storage_offset() % alignment == 0 for t in _tensors(call))


def _cudnn(call: Attention, capability: tuple[int, int]) -> bool:
    batch_heads = max(call.query.shape[0], call.query.shape[1]) if call.query.dim() == 4 else 0
    if (
        not _C._get_cudnn_sdp_enabled()
        or not (8, 0) <= capability <= (12, 1)
        or not _dtypes_in(call, _HALF)
        or (torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled())
        or call.dropout * 16 != math.floor(call.dropout * 16)
        or not _is_dense_batch(call)
        or not _last_dim_contiguous(call, ignore_singleton=True)
        or batch_heads > _CUDNN_MAX_DIM
        or call.key.shape[2] == 1
        or (call.dropout > 0 and call.query.shape[2] == 1)
        or not _cudnn_mask(call)
    ):
        return False
    heads, key_heads, value_heads = (t.shape[1] for t in _tensors(call))
    if _grouped(call):
        if heads % key_heads or heads % value_heads:
            return False
    elif not heads == key_heads == value_heads:
        return False
    return _cudnn_head_dims(call, capability)


def _cudnn_mask(call: Attention) -> bool:
    """No gradient for the mask, and a 2-d or 4-d shape that broadcasts."""
    mask = call.mask
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    full = (call.query.shape[0], call.query.shape[1], call.query.shape[2], call.key.shape[2])
    return all(n in (1, size) for n, size in zip(mask.shape, full[4 - mask.dim() :], strict=True))


def _cudnn_head_dims(call: Attention, capability: tuple[int, int]) -> bool:
    """Multiples of 8 up to 128; up to 256 on 9.0 and 10.x with cuDNN > 9.22 (torch 2.13 and later ship 9.24)."""
    dims = call.query.shape[-1], call.value.shape[-1]
    if dims[0] % 8 or dims[1] % 8:
        return False
    if capability == (9, 0) or capability[0] == 10:
        if torch_version() >= (2, 13):
            if call.needs_grad:
                return max(dims) <= 128 or dims in ((192, 128), (256, 256))
            return max(dims) <= 256
        if dims == (192, 128):
            return True
    return max(dims) <= 128
