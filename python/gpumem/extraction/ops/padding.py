"""Padding. Sources: `ATen/native/cuda/{ReflectionPad,ReplicationPadding}.cu`; checked against the virtual GPU.

Constant and circular padding are arithmetic on views and need no correction.
"""

from __future__ import annotations

import torch

from gpumem.extraction.ops.copies import outputs_then_copies
from gpumem.extraction.ops.registry import handles

aten = torch.ops.aten

handles(
    aten.reflection_pad1d.default,
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d.default,
    aten.reflection_pad3d_backward.default,
)(outputs_then_copies(0))
