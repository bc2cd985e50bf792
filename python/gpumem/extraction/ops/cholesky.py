"""Cholesky factors of batches of matrices, which cuSOLVER takes as arrays of pointers (`BatchLinearAlgebraLib.cpp`).

What cuSOLVER asks for a single matrix is not known here and left out.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_POINTER_BYTES = 8


def _batch(matrices: torch.Tensor) -> int:
    return math.prod(matrices.shape[:-2])


@handles(aten.linalg_cholesky_ex.default)
def cholesky(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Factors and flags; the matrices of a batch are pointed to."""
    output = func(*args, **kwargs)
    if args[0].is_meta:
        rec.requested(output)
        if _batch(args[0]) > 1:
            with Temporaries(rec) as tmp:
                tmp.alloc(_batch(args[0]) * _POINTER_BYTES)
    return output
