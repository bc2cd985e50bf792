"""Predictions put to the test: the reference loop in a child process on a real or virtual GPU, measured.

    gpumem.validate(model, batch=64, on="cuda:0", budget="24GB")
    gpumem.validate(plan, model=model)

A crash, an out-of-memory or a hang in the child is an answer; the caller goes on. `Session` keeps the child for several
validations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem.lazy import on_first_use
from gpumem.validation.confirm import validate
from gpumem.validation.result import Validation

if TYPE_CHECKING:
    from gpumem.validation.bracket import Bracket
    from gpumem.validation.compare import Difference
    from gpumem.validation.measurement import DeviceFacts, Measurement, StepPeaks
    from gpumem.validation.receipts import replay
    from gpumem.validation.session import Session

__all__ = [
    "Bracket",
    "DeviceFacts",
    "Difference",
    "Measurement",
    "Session",
    "StepPeaks",
    "Validation",
    "replay",
    "validate",
]

__getattr__ = on_first_use(
    __name__,
    {
        "Bracket": "bracket",
        "DeviceFacts": "measurement",
        "Difference": "compare",
        "Measurement": "measurement",
        "Session": "session",
        "StepPeaks": "measurement",
        "replay": "receipts",
    },
)
