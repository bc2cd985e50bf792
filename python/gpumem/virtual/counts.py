"""Counters that PyTorch reads back from the device and divides by, which would be zero there."""

from __future__ import annotations

import builtins
import importlib
from typing import Any


def count_from_one() -> None:
    """Let batch norm without a momentum (`torch.optim.swa_utils.update_bn`) divide by one batch instead of none.

    It reads `num_batches_tracked`, to which kernels add. The read itself stays what it is, and is counted.
    """

    def at_least_one(value: Any) -> float:
        return builtins.float(value) or 1.0

    # The name stands in front of the builtin in that module alone.
    vars(importlib.import_module("torch.nn.modules.batchnorm"))["float"] = at_least_one
