"""Fused attention kernels of CUDA: outputs, saved tensors and temporaries of flash, efficient and cuDNN attention.

Sources: `flash_api.cpp`, `attention.cu`, `attention_backward.cu` of torch 2.14, checked against the virtual GPU; what
depends on the GPU or on tile sizes are formulas of the core (`formula/attention.rs`):

- `flash_forward_split` `[B, H, Sq, Sk, D]`: partial log-sum-exps and outputs when keys are split over blocks;
  stage 0 requests, stage 1 frees.
- `flash_backward` `[B, H, Sq, D]`: per-row sums and the fp32 accumulator of dq; stage 0 requests, stage 1 frees.
- `efficient_backward` `[B, H, Sq, Sk, D, Dv, itemsize, dropout]`: the workspace; stage 0 requests, stage 1 frees.
- `cudnn_attention_workspace` `[backward, B, H, Hk, Sq, Sk, D, Dv, bias, dropout, causal]`: one stage.
"""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.installed import (
    efficient_attention_has_seeds_without_dropout,
    flash_attention_has_seeds_on_the_device,
)
from gpumem.extraction.ops.reduction_scratch import reduce_scratch
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_FP32_BYTES = 4
# Rows of the efficient kernel's log-sum-exp and of a mask's gradient are padded to these many elements.
_LSE_ALIGNMENT = 32
_BIAS_GRADIENT_ALIGNMENT = 16
# Up to this head dimension the efficient kernel keeps a 16-bit output's fp32 sums in registers (kernel_forward.h).
_OUTPUT_IN_REGISTERS = 128


def _empty(shape: Any, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device="meta")


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _count(rec: Recorder, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, products: int) -> None:
    """Floating-point operations of `products` pairs of matrix products (scores, and values)."""
    batch, heads, rows, dim = query.shape
    rec.depends_on_capability = True
    rec.count_flops(products * batch * heads * rows * key.shape[2] * (dim + value.shape[3]))


@handles(aten._scaled_dot_product_flash_attention.default)
def flash_forward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Output and log-sum-exp, the split-KV pair, then seeds (with dropout: one more 16-byte pair in the call)."""
    query, key, value = args[:3]
    dropout = _argument(args, kwargs, 3, "dropout_p", 0.0)
    batch, heads, rows, dim = query.shape
    output = torch.empty_like(query.transpose(1, 2)).transpose(1, 2)
    logsumexp = _empty((batch, heads, rows), query, torch.float32)
    rec.requested(output, logsumexp)
    if flash_attention_has_seeds_on_the_device():
        seed, unused = _empty((2,), query, torch.int64), _empty((), query, torch.int64)
    else:
        seed, unused = (torch.empty((), dtype=torch.int64) for _ in range(2))
    if dropout > 0:
        with Temporaries(rec) as tmp:
            tmp.alloc(_nbytes(seed) if seed.is_meta else 0)
            rec.requested(unused, seed)
    else:
        split = rec.formula("flash_forward_split", [batch, heads, rows, key.shape[2], dim])
        rec.stage(split, 0)
        rec.requested(seed, unused)
        rec.stage(split, 1)
    _count(rec, query, key, value, 2)
    return output, logsumexp, None, None, rows, key.shape[2], seed, unused, _empty((0,), query)


@handles(aten._scaled_dot_product_flash_attention_backward.default)
def flash_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copies of grad and out that are not `[B, S, H, D]`, the gradients, the fp32 accumulator; GQA: dk, dv per head."""
    grad, query, key, value, output = args[:5]
    batch, heads, rows, dim = query.shape
    with Temporaries(rec) as tmp:
        tmp.contiguous(grad.transpose(1, 2))
        tmp.contiguous(output.transpose(1, 2))
        grads = [torch.empty_like(t.transpose(1, 2)) for t in (query, key, value)]
        rec.requested(grads)
        accumulator = rec.formula("flash_backward", [batch, heads, rows, dim])
        rec.stage(accumulator, 0)
        if key.shape[1] != heads:
            key_heads = key.shape[1]
            expanded = _empty((batch, key.shape[2], key_heads, heads // key_heads, dim), query)
            tmp.alloc(_nbytes(expanded))
            tmp.alloc(_nbytes(expanded))
            reduce_scratch(rec, expanded, [3])
            reduce_scratch(rec, expanded, [3])
        rec.stage(accumulator, 1)
    _count(rec, query, key, value, 5)
    return tuple(t.transpose(1, 2) for t in grads)


@handles(aten._scaled_dot_product_efficient_attention.default)
def efficient_forward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Seeds (on the CPU with dropout, two device scalars without), output, log-sum-exp; fp32 sums of wide heads."""
    query, key, value = args[:3]
    dropout = _argument(args, kwargs, 5, "dropout_p", 0.0)
    batch, heads, rows, _ = query.shape
    on_device = dropout == 0 and efficient_attention_has_seeds_without_dropout()
    seed, offset = (torch.empty((), dtype=torch.int64, device="meta" if on_device else "cpu") for _ in range(2))
    rec.requested(seed, offset)
    output = _empty((batch, rows, heads, value.shape[3]), query)
    padded_rows = -(-rows // _LSE_ALIGNMENT) * _LSE_ALIGNMENT if args[4] else 0
    logsumexp = _empty((batch, heads, padded_rows), query, torch.float32)
    rec.requested(output, logsumexp)
    with Temporaries(rec) as tmp:
        if query.element_size() < _FP32_BYTES and max(query.shape[3], value.shape[3]) > _OUTPUT_IN_REGISTERS:
            tmp.alloc(output.numel() * _FP32_BYTES)
    _count(rec, query, key, value, 2)
    return output.transpose(1, 2), logsumexp, seed, offset


@handles(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients (GQA: also per query head), a padded gradient of the mask, delta, the tile workspace."""
    grad, query, key, value, bias = args[:5]
    dropout, needed = args[9], args[10]
    batch, heads, rows, dim = query.shape
    columns, key_heads, value_dim = key.shape[2], key.shape[1], value.shape[3]
    bias_grad = None
    with Temporaries(rec) as tmp:
        tmp.contiguous(grad.transpose(1, 2))
        query_grad = _empty((batch, rows, heads, dim), query)
        key_grad = _empty((batch, columns, key_heads, dim), query)
        value_grad = _empty((batch, columns, key_heads, value_dim), query)
        rec.requested(query_grad, key_grad, value_grad)
        if key_heads != heads:
            tmp.alloc(batch * columns * heads * dim * query.element_size())
            tmp.alloc(batch * columns * heads * value_dim * query.element_size())
        if needed[3] and bias is not None:
            padded = -(-columns // _BIAS_GRADIENT_ALIGNMENT) * _BIAS_GRADIENT_ALIGNMENT
            bias_grad = _empty((batch, heads, rows, padded), query)
            rec.requested(bias_grad)
            bias_grad = bias_grad[..., :columns]
        delta = _delta(rec, tmp, query, value_dim)
        workspace = rec.formula(
            "efficient_backward", [batch, heads, rows, columns, dim, value_dim, query.element_size(), int(dropout > 0)]
        )
        rec.stage(workspace, 0)
        tmp.free(delta)
        rec.stage(workspace, 1)
    _count(rec, query, key, value, 5)
    return query_grad.transpose(1, 2), key_grad.transpose(1, 2), value_grad.transpose(1, 2), bias_grad


def _delta(rec: Recorder, tmp: Temporaries, query: torch.Tensor, value_dim: int) -> int | None:
    """Row sums of grad * out: computed by the kernel in 16 bit, by three ops before it in fp32."""
    batch, heads, rows, _ = query.shape
    row_sums_bytes = batch * rows * heads * _FP32_BYTES
    if query.element_size() < _FP32_BYTES:
        return tmp.alloc(row_sums_bytes)
    product = tmp.alloc(row_sums_bytes * value_dim)
    row_sums = tmp.alloc(row_sums_bytes)
    reduce_scratch(rec, _empty((batch, rows, heads, value_dim), query), [3])
    # Transposed to [B, H, S]; a copy unless the order of the dimensions does not matter.
    delta = tmp.alloc(row_sums_bytes) if rows > 1 and heads > 1 else row_sums
    if delta != row_sums:
        tmp.free(row_sums)
    tmp.free(product)
    return delta


@handles(aten._scaled_dot_product_cudnn_attention.default)
def cudnn_forward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Two seeds, the output in the query's layout, log-sum-exp, then cuDNN's workspace."""
    query, key, value, bias = args[:4]
    needs_logsumexp = args[4]
    dropout = _argument(args, kwargs, 5, "dropout_p", 0.0)
    causal = _argument(args, kwargs, 6, "is_causal", False)
    batch, heads, rows, dim = query.shape
    seed, offset = _empty((), query, torch.int64), _empty((), query, torch.int64)
    rec.requested(seed, offset)
    if value.shape[3] == dim:
        output = torch.empty_like(query)
    else:
        output = _empty((batch, rows, heads, value.shape[3]), query).transpose(1, 2)
    logsumexp = _empty((batch, heads, rows if needs_logsumexp else 0, 1), query, torch.float32)
    rec.requested(output, logsumexp)
    rec.scratch("cudnn_attention_workspace", _cudnn_arguments(False, query, key, value, bias, dropout, causal))
    _count(rec, query, key, value, 2)
    return output, logsumexp, None, None, rows, key.shape[2], seed, offset, _empty((0,), query)


@handles(aten._scaled_dot_product_cudnn_attention_backward.default)
def cudnn_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradients in their inputs' layouts, then cuDNN's workspace."""
    _grad, query, key, value = args[:4]
    grads = tuple(torch.empty_like(t) for t in (query, key, value))
    rec.requested(grads)
    arguments = _cudnn_arguments(True, query, key, value, args[8], args[13], args[14])
    rec.scratch("cudnn_attention_workspace", arguments)
    _count(rec, query, key, value, 5)
    return grads


def _cudnn_arguments(
    backward: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    dropout: float,
    causal: bool,
) -> list[int]:
    batch, heads, rows, dim = query.shape
    flags = [int(bias is not None), int(dropout > 0), int(causal)]
    return [int(backward), batch, heads, key.shape[1], rows, key.shape[2], dim, value.shape[3], *flags]
