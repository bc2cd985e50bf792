"""How much GPU memory a PyTorch model will take, and the largest batch that fits, before any GPU is touched.

    gpumem.max_batch(model, budget="24GB")
    gpumem.estimate(model, batch=64, gpu="a100-80gb", precision="amp-bf16", optimizer="adamw")

`import gpumem` does not import torch; only `extract` (and what calls it) does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem import errors
from gpumem._core import GpuProfile, ModelSpec, Quantity, Report, gpus
from gpumem.api import estimate, extract, max_batch, pareto, plan
from gpumem.errors import GpumemError
from gpumem.lazy import on_first_use
from gpumem.planning import Front, Plan
from gpumem.validation import Validation, validate

if TYPE_CHECKING:
    from gpumem.sweeping import Sweep, sweep

__all__ = [
    "Front",
    "GpuProfile",
    "GpumemError",
    "ModelSpec",
    "Plan",
    "Quantity",
    "Report",
    "Sweep",
    "Validation",
    "errors",
    "estimate",
    "extract",
    "gpus",
    "max_batch",
    "pareto",
    "plan",
    "sweep",
    "validate",
]

# They bring numpy, which a one-line question does not need.
__getattr__ = on_first_use(__name__, {"Sweep": "sweeping", "sweep": "sweeping"})
