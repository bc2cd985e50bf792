"""Kernels of optimizers, gradient clipping and GradScaler."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.installed import foreach_norm_packs_chunks
from gpumem.extraction.memory_format import is_dense
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
# Orders of the norm that the multi-tensor kernel knows; others are computed tensor by tensor.
_FUSED_ORDERS = (1, 2, float("inf"))


@handles(aten._amp_foreach_non_finite_check_and_unscale_.default)
def amp_unscale(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients are unscaled in place."""
    return None


@handles(aten._amp_update_scale_.default)
def amp_update_scale(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The scale is updated in place."""
    return args[0]


def _fused_step(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One kernel, all in place; PyTorch has no meta kernel for these."""
    return None if args[0] and args[0][0].is_meta else func(*args, **kwargs)


for _name in ("_fused_sgd_", "_fused_adagrad_"):
    for _overload in ("default", "tensor_lr"):
        _op = getattr(getattr(aten, _name, None), _overload, None)
        if _op is not None:
            handles(_op)(_fused_step)


@handles(aten._foreach_norm.Scalar)
def foreach_norm(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Partial norms of all tensors' chunks around the scalar results.

    The formula `foreach_norm` has the arguments `[tensors, largest_elems, itemsize]`, `foreach_norm_packed`
    `[itemsize, elems of each tensor]`; stage 0 requests the partial norms, stage 1 frees them.
    """
    tensors = args[0]
    order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
    dtype = args[2] if len(args) > 2 else kwargs.get("dtype")
    if not tensors[0].is_meta or not _one_kernel(tensors, order, dtype):
        return func(*args, **kwargs)
    result_dtype = dtype or tensors[0].dtype
    outputs = [torch.empty((), dtype=result_dtype, device="meta") for _ in tensors]
    itemsize, elems = tensors[0].element_size(), [tensor.numel() for tensor in tensors]
    if foreach_norm_packs_chunks():
        scratch = rec.formula("foreach_norm_packed", [itemsize, *elems])
    else:
        scratch = rec.formula("foreach_norm", [len(tensors), max(elems), itemsize])
    rec.stage(scratch, 0)
    rec.requested(outputs)
    rec.stage(scratch, 1)
    return outputs


def _one_kernel(tensors: list[torch.Tensor], order: Any, dtype: torch.dtype | None) -> bool:
    """Whether the multi-tensor kernel takes the list: one floating dtype, dense, one of its orders."""
    first = tensors[0]
    return (
        order in _FUSED_ORDERS
        and first.is_floating_point()
        and (dtype is None or dtype == first.dtype or (first.dtype in _HALF and dtype == torch.float32))
        and all(t.dtype == first.dtype and is_dense(t) and t.numel() for t in tensors)
    )
