"""Kernels of optimizers and GradScaler that have no meta implementation and request no memory."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extract.ops.registry import handles
from gpumem.extract.recorder import Recorder

aten = torch.ops.aten


@handles(aten._amp_foreach_non_finite_check_and_unscale_.default)
def amp_unscale(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients are unscaled in place."""
    return None


@handles(aten._amp_update_scale_.default)
def amp_update_scale(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The scale is updated in place."""
    return args[0]
