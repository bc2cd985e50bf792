"""A row's program on the virtual GPU: unmodified PyTorch, its allocator, the installed cuDNN's answers for the card."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpumem.validation import Session


def run_on(session: Session, model: nn.Module, input: Any, batch: int, keywords: dict[str, Any]) -> dict[str, Any]:
    """Run a loop and say what came of it.

    Args:
        session: The device.
        model: The module, on meta or not.
        input: As for `gpumem.extract`.
        batch: Batch size.
        keywords: Further keywords of `gpumem.extract`.

    Returns:
        `outcome`, the peaks of the four quantities in bytes, and `retries`.
    """
    measured = session.validate(model, input, batch=batch, **keywords).measured
    return {
        "outcome": measured.outcome,
        **({"message": measured.message[:200]} if measured.message else {}),
        "requested": measured.requested_peak_bytes,
        "allocated": measured.allocated_peak_bytes,
        "reserved": measured.reserved_peak_bytes,
        "nvidia-smi": measured.device_peak_bytes,
        "retries": measured.retries,
    }


class InBenchmarkMode:
    """A step of a script that sets `torch.backends.cudnn.benchmark`; a trace is told of it by a keyword instead.

    Args:
        step: The step.
    """

    def __init__(self, step: Any) -> None:
        self._step = step

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Any:
        """One step."""
        if torch.cuda.is_available():
            torch.backends.cudnn.benchmark = True
        return self._step(model, optimizer, batch)
