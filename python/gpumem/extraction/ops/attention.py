"""`scaled_dot_product_attention` as CUDA runs it: the backend's preparation of masks and head sizes, and the math path.

Follows `ATen/native/transformers/attention.cpp` of torch 2.14. The fused kernels themselves are in `attention_kernels`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.installed import torch_version
from gpumem.extraction.ops.attention_backends import Attention, choose_backend
from gpumem.extraction.ops.reduction_scratch import reduce_scratch
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.overloads import overload
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
# Flash pads head dimensions, and the efficient kernel masks, to 8 elements.
_ALIGNMENT = 8
# 3-d inputs are given a batch dimension of one, so that fused kernels can take them (seen in 2.14; before: math path).
_UNBATCHED_DIM = 3
_UNBATCHED_SINCE = (2, 14)
# torch 2.5 and later.
_SAFE = hasattr(aten, "_safe_softmax")


@chooses("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Call the kernel that CUDA would choose."""
    if query.dim() == key.dim() == value.dim() == _UNBATCHED_DIM and torch_version() >= _UNBATCHED_SINCE:
        mask_4d = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.dim() == _UNBATCHED_DIM else attn_mask
        batched: torch.Tensor = aten.scaled_dot_product_attention.default(
            query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), mask_4d, dropout_p, is_causal,
            scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
        return batched.squeeze(0)
    call = Attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    backend = choose_backend(call)
    mask = _additive(attn_mask, query.dtype)
    if backend == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if backend == "cudnn":
        return _cudnn(call, mask, scale)
    if backend == "efficient":
        if mask is not None:
            mask = _padded_mask(mask, call)
        output: torch.Tensor = aten._scaled_dot_product_efficient_attention.default(
            query, key, value, mask, call.needs_grad, dropout_p, is_causal, scale=scale
        )[0]
        return output
    return _math(call, mask, scale)


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A boolean mask as 0 and -inf: two scalars on the device, then the mask."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    minus_infinity = aten.scalar_tensor.default(-math.inf, dtype=dtype, device="meta")
    zero = aten.scalar_tensor.default(0.0, dtype=dtype, device="meta")
    result: torch.Tensor = aten.where.self(mask, zero, minus_infinity)
    return result


def _pad_last(tensor: torch.Tensor) -> torch.Tensor:
    missing = -tensor.shape[-1] % _ALIGNMENT
    return aten.constant_pad_nd.default(tensor, [0, missing], 0.0) if missing else tensor


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, causal: bool, scale: float | None
) -> torch.Tensor:
    dim = query.shape[-1]
    if scale is None:
        scale = 1 / math.sqrt(dim)
    output: torch.Tensor = aten._scaled_dot_product_flash_attention.default(
        _pad_last(query), _pad_last(key), _pad_last(value), dropout, causal, False, scale=scale
    )[0]
    return output if output.shape[-1] == dim else output[..., :dim]


def _cudnn(call: Attention, mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    output: torch.Tensor = aten._scaled_dot_product_cudnn_attention.default(
        call.query, call.key, call.value, mask, call.needs_grad, call.dropout, call.causal, False, scale=scale
    )[0]
    return output


def _padded_mask(mask: torch.Tensor, call: Attention) -> torch.Tensor:
    """Rows of the mask must start at multiples of 8 elements (16 bytes in 16 bit); then it is expanded to 4-d."""
    last = mask.shape[-1]
    aligned = (
        last % _ALIGNMENT == 0
        and mask.stride(-1) == 1
        and mask.storage_offset() % _ALIGNMENT == 0
        and all(stride % _ALIGNMENT == 0 for stride in mask.stride()[:-1])
    )
    if not aligned:
        pad = _ALIGNMENT - last % _ALIGNMENT
        mask = aten.constant_pad_nd.default(mask, [0, pad], 0.0)[..., :last]
    return mask.expand(call.query.shape[0], call.query.shape[1], call.query.shape[2], call.key.shape[2])


def _computes_in_fp32() -> bool:
    """Before torch 2.5, which brought the switch, 16-bit inputs stayed what they are."""
    reduced_allowed = getattr(torch._C, "_get_math_sdp_allow_fp16_bf16_reduction", None)
    return reduced_allowed is not None and not reduced_allowed()


def _math(call: Attention, mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    """The composite path: 16-bit inputs are computed in fp32; the weights are also cast back, for a second output."""
    dtype = call.query.dtype
    query, key, value = call.query, call.key, call.value
    if dtype in _HALF and _computes_in_fp32():
        query, key, value = query.float(), key.float(), value.float()
    root = math.sqrt(abs(scale) if scale is not None else 1 / math.sqrt(query.shape[-1]))
    scaled = query * (-root if scale is not None and scale < 0 else root)
    if call.causal:
        # The square of ones ends with the call of `tril`, the triangle with that of `_additive`.
        mask = _additive(
            torch.ones(scaled.shape[-2], key.shape[-2], dtype=torch.bool, device="meta").tril(), scaled.dtype
        )
    expanded_key, expanded_value = key, value
    if call.gqa and not query.shape[-3] == key.shape[-3] == value.shape[-3]:
        expanded_key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        expanded_value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    weights = scaled.matmul(expanded_key.transpose(-2, -1) * root)
    if mask is not None:
        weights.add_(mask)
    weights = aten._safe_softmax.default(weights, -1) if _SAFE else aten._softmax.default(weights, -1, False)
    if call.dropout > 0:
        weights = aten.dropout.default(weights, call.dropout, True)
    # Arguments of the returned pair are evaluated from the right; the cast weights live until the call ends.
    second_output = weights.to(dtype)
    output = weights.matmul(expanded_value).to(dtype)
    del second_output
    return output  # type: ignore[no-any-return]


@handles(overload("_safe_softmax"))
def safe_softmax(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Softmax, then rows of nothing but -inf are set to zero: a bool per element, a bool per row, one scalar."""
    x, dim = args[0], args[1] % max(1, args[0].dim())
    dtype = (args[2] if len(args) > 2 else kwargs.get("dtype")) or x.dtype
    output = torch.empty(x.shape, dtype=dtype, device="meta")
    rec.depends_on_capability = True
    with Temporaries(rec) as tmp:
        if dtype != x.dtype:
            tmp.alloc(x.numel() * output.element_size())
        rec.requested(output)
        copy = tmp.contiguous(x)
        tmp.free(copy)
        is_masked = torch.empty(x.shape, dtype=torch.bool, device="meta")
        tmp.alloc(x.numel())
        tmp.alloc(x.numel() // max(1, x.shape[dim]))
        reduce_scratch(rec, is_masked, [dim], acc_itemsize=1)
        tmp.alloc(output.element_size())
    return output
