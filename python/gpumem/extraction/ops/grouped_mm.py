"""Grouped matrix products of mixture-of-experts layers (`ATen/native/cuda/GroupedBlas.cpp`)."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.product_workspaces import cublas_call
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.overloads import overload
from gpumem.extraction.recorder import Recorder
from gpumem.extraction.target import current_target

aten = torch.ops.aten
# Rows of the output start at multiples of this many bytes.
_ROW_ALIGNMENT_BYTES = 16
_CUTLASS_SINCE = (9, 0)


def _output(left: torch.Tensor, right: torch.Tensor, groups: int, dtype: torch.dtype) -> torch.Tensor:
    if left.dim() == 2 and right.dim() == 2:
        shape: tuple[int, ...] = (groups, left.shape[0], right.shape[1])
    elif left.dim() == 3 and right.dim() == 3:
        shape = (left.shape[0], left.shape[1], right.shape[2])
    elif left.dim() == 2:
        shape = (left.shape[0], right.shape[2])
    else:
        shape = (left.shape[1], right.shape[1])
    alignment = max(1, _ROW_ALIGNMENT_BYTES // dtype.itemsize)
    padded = -(-shape[-1] // alignment) * alignment
    return torch.empty((*shape[:-1], padded), dtype=dtype, device="meta")[..., : shape[-1]]


@handles(overload("_grouped_mm"))
def grouped_mm(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output; a CUTLASS kernel (bf16 from 9.0 on) takes problem descriptions and a workspace.

    Formula `grouped_mm` `[groups]`: 60 bytes per group, then 512 bytes per SM; both freed at the end of the call.
    """
    left, right = args[:2]
    if not left.is_meta:
        return func(*args, **kwargs)
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    groups = offsets.shape[0] if offsets is not None else left.shape[0]
    output = _output(left, right, groups, kwargs.get("out_dtype") or left.dtype)
    rec.requested(output)
    rec.depends_on_capability = True
    if left.dtype == torch.bfloat16 and current_target().capability >= _CUTLASS_SINCE:
        rec.scratch("grouped_mm", [groups])
    else:
        cublas_call(rec)
    rec.count_flops(2 * left.shape[-1] * output.numel() // (groups if left.dim() == right.dim() == 2 else 1))
    return output
