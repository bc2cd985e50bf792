"""Per-op corrections: what CUDA's kernel requests where PyTorch's meta kernel allocates otherwise.

One small file per op family. A file registers handlers (`@handles(aten.op.overload)`, see `registry.py`) and, where a
composite op looks at the device to choose a kernel, choices (`@chooses("aten_name")`). Importing this package loads all.
"""

from __future__ import annotations

from gpumem.extract.ops import (
    accumulate,
    attention,
    attention_kernels,
    batch_norm,
    convolution,
    dropout,
    embedding,
    gemm,
    group_norm,
    host,
    im2col,
    indexing,
    layer_norm,
    optimizers,
    padding,
    pointwise,
    pooling,
    rearrange,
    resize,
    rms_norm,
    softmax,
)
from gpumem.extract.ops.registry import CHOICES, HANDLERS, VERIFIED

pointwise.fill_gaps()

__all__ = [
    "CHOICES",
    "HANDLERS",
    "VERIFIED",
    "accumulate",
    "attention",
    "attention_kernels",
    "batch_norm",
    "convolution",
    "dropout",
    "embedding",
    "gemm",
    "group_norm",
    "host",
    "im2col",
    "indexing",
    "layer_norm",
    "optimizers",
    "padding",
    "pointwise",
    "pooling",
    "rearrange",
    "resize",
    "rms_norm",
    "softmax",
]
