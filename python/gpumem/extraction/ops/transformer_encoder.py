"""Inference fast paths of `nn.TransformerEncoderLayer` and `nn.MultiheadAttention`, which are single ops.

Follows `ATen/native/transformers/transformer.cpp` and `cuda/attention.cu` (`native_multi_head_attention_cuda`) of torch
2.14, without nested tensors.
"""

from __future__ import annotations

import math

import torch

from gpumem.extraction.ops.attention_backends import Attention, choose_backend
from gpumem.extraction.ops.registry import chooses

aten = torch.ops.aten
# The fused path wants head dimensions of a multiple of this.
_HEAD_ALIGNMENT = 8
# `mask_type` of a mask of queries by keys, without a batch.
_SQUARE_MASK = 0
# Longest row that one kernel masks and normalises (`cuda/SoftMax.cu`).
_PERSISTENT_ROW = 1024
_PERSISTENT_ROW_BYTES = 4096


@chooses("_native_multi_head_attention")
def native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Self-attention in one op: through a fused kernel if one fits and neither mask nor weights are asked for."""
    batch, rows, _ = query.shape
    dim = embed_dim // num_head
    if query is key and key is value and dim % _HEAD_ALIGNMENT == 0 and not need_weights and mask is None:
        heads = query.view(batch, rows, num_head, dim).transpose(1, 2)
        if choose_backend(Attention(heads, heads, heads, None, 0.0, False, False)) in ("flash", "efficient"):
            return _fused(query, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias), None
    projected = _project(query, key, value, embed_dim, qkv_weight)
    # Bias, scale and the transposition to heads write one new buffer for all three.
    packed = torch.empty(3, batch, num_head, rows, dim, dtype=projected.dtype, device="meta")
    del projected
    heads_first = [part.reshape(batch * num_head, rows, dim) for part in packed]
    weights = aten.bmm.default(heads_first[0], heads_first[1].transpose(1, 2))
    weights = weights.view(batch, num_head, rows, -1)
    if mask is not None:
        # Without a mask the softmax is in place.
        weights = _masked_softmax(weights, mask, mask_type)
    kept = weights if need_weights else None
    # The context overwrites the query; then it is transposed back and projected.
    aten.bmm.out(weights.view(batch * num_head, rows, -1), heads_first[2], out=heads_first[0])
    del weights, heads_first
    context = torch.empty(batch * rows, embed_dim, dtype=query.dtype, device="meta")
    output = aten.addmm.default(proj_bias, context, proj_weight.t()).view(batch, rows, embed_dim)
    del context
    if kept is not None and average_attn_weights:
        kept = kept.sum(1)
        kept /= num_head
    return output, kept


def _masked_softmax(weights: torch.Tensor, mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """`masked_softmax` of ATen: a bool mask, the result; long rows are filled and go the usual way."""
    if mask.dtype != torch.bool:
        mask = mask.to(torch.bool)
    if mask_type == _SQUARE_MASK and mask.dim() == 2:
        mask = mask.expand(weights.shape)
    output = torch.empty_like(weights)
    row = weights.shape[-1]
    if row > _PERSISTENT_ROW or row * weights.element_size() > _PERSISTENT_ROW_BYTES or not mask.is_contiguous():
        if mask.dim() == 2:
            mask = mask.view(mask.shape[0], 1, 1, -1)
        output = torch.softmax(weights.masked_fill(mask, 0.0), -1)
    return output


def _fused(
    query: torch.Tensor,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
) -> torch.Tensor:
    batch, _rows, embed_dim = query.shape
    projected = aten.linear.default(query, qkv_weight, qkv_bias)
    parts = [part.view(batch, -1, num_head, embed_dim // num_head).transpose(1, 2) for part in projected.chunk(3, -1)]
    attended = aten.scaled_dot_product_attention.default(*parts)
    flat = attended.transpose(1, 2).reshape(batch, -1, embed_dim)
    output: torch.Tensor = aten.linear.default(flat, proj_weight, proj_bias)
    return output


def _project(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim: int, qkv_weight: torch.Tensor
) -> torch.Tensor:
    """One product for self-attention, two where only keys and values agree, three otherwise."""
    if query is key and key is value:
        return query.matmul(qkv_weight.t())
    if key is value:
        first, rest = qkv_weight.split([embed_dim, embed_dim * 2])
        products = [query.matmul(first.t()), key.matmul(rest.t())]
    else:
        inputs = (query, key, value)
        products = [x.matmul(w.t()) for x, w in zip(inputs, qkv_weight.chunk(3, 0), strict=True)]
    return torch.cat(products, 2)


@chooses("_transformer_encoder_layer_fwd")
def transformer_encoder_layer_fwd(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """A whole encoder layer; residuals are added in place."""

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = aten.native_layer_norm.default(x, [embed_dim], weight, bias, eps)[0]
        return output

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    attended: torch.Tensor = aten._native_multi_head_attention.default(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
    )[0]
    x = attended.add_(src)
    if not norm_first:
        x = norm(x, norm_weight_1, norm_bias_1)
    del attended
    residual = x
    if norm_first:
        x = norm(x, norm_weight_2, norm_bias_2)
    rows = math.prod(x.shape[:-1])
    hidden = aten._addmm_activation.default(ffn_bias_1, x.reshape(rows, -1), ffn_weight_1.t(), use_gelu=use_gelu)
    x = aten.addmm.default(ffn_bias_2, hidden, ffn_weight_2.t()).view(src.shape)
    del hidden
    x.add_(residual)
    return x if norm_first else norm(x, norm_weight_2, norm_bias_2)
