"""Per-op corrections: what CUDA's kernel requests where PyTorch's meta kernel allocates otherwise.

One small file per op family. A file registers handlers (`@handles(aten.op.overload)`, see `registry.py`) and, where a
composite op looks at the device to choose a kernel, choices (`@chooses("aten_name")`). Importing this package loads all.
"""

from __future__ import annotations

from gpumem.extraction.ops import (
    accumulate,
    affine_grid,
    attention,
    attention_kernels,
    batch_norm,
    convolution,
    dropout,
    elementwise,
    embedding,
    gemm,
    grid_sample,
    group_norm,
    grouped_mm,
    host,
    im2col,
    indexing,
    layer_norm,
    linalg,
    loss,
    optimizers,
    padding,
    pointwise,
    pooling,
    rearrange,
    recurrent,
    recurrent_cells,
    reduction,
    resize,
    rms_norm,
    softmax,
    sorting,
    transformer_encoder,
)
from gpumem.extraction.ops.registry import CHOICES, HANDLERS, VERIFIED

pointwise.fill_gaps()

__all__ = [
    "CHOICES",
    "HANDLERS",
    "VERIFIED",
    "accumulate",
    "affine_grid",
    "attention",
    "attention_kernels",
    "batch_norm",
    "convolution",
    "dropout",
    "elementwise",
    "embedding",
    "gemm",
    "grid_sample",
    "group_norm",
    "grouped_mm",
    "host",
    "im2col",
    "indexing",
    "layer_norm",
    "linalg",
    "loss",
    "optimizers",
    "padding",
    "pointwise",
    "pooling",
    "rearrange",
    "recurrent",
    "recurrent_cells",
    "reduction",
    "resize",
    "rms_norm",
    "softmax",
    "sorting",
    "transformer_encoder",
]
