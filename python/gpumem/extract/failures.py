"""What a model raised while it was traced, told with the place, the phase and what is usually wrong there."""

from __future__ import annotations

from dataclasses import dataclass

from gpumem.errors import ExtractionError
from gpumem.extract.recorder import Recorder

_HOST_MEETS_DEVICE = ("on the same device", "in the same device", "is not on the expected device", "at least two devices")


@dataclass(frozen=True)
class Subject:
    """What was traced, for messages.

    Attributes:
        model: Class name of the model.
        inputs: Its input, described.
        own_step: Whether the user's own step function ran.
    """

    model: str
    inputs: str
    own_step: bool


def explained(error: Exception, rec: Recorder, subject: Subject) -> ExtractionError:
    """The error to raise from `error`, which ended a trace."""
    return ExtractionError(
        f"{subject.model} with input {subject.inputs} failed {_place(rec, subject)}: {type(error).__name__}: {error}",
        _hint(str(error), rec, subject),
    )


def _place(rec: Recorder, subject: Subject) -> str:
    if rec.failed_layer is not None:
        path = rec.layers[rec.failed_layer]
        return f"in the forward pass of '{path}'" if path else "in its forward pass"
    if subject.own_step:
        return "in your step function"
    return {"forward": "in the criterion", "backward": "in the backward pass", "optimizer": "in the optimizer's step"}.get(
        rec.phase, "before its first step"
    )


def _hint(text: str, rec: Recorder, subject: Subject) -> str:
    if any(part in text for part in _HOST_MEETS_DEVICE):
        return (
            "a tensor stays on the host when the model is moved to CUDA: register it as a buffer, keep modules in a "
            "ModuleList, or create it with device=x.device"
        )
    if rec.failed_layer is not None:
        return "the exception is the model's own: check the input's shape, dtype and argument names"
    if subject.own_step:
        return "step is called as step(model, optimizer, batch); batch is the input, or (input, target) with target="
    if rec.phase == "forward":
        return "the criterion is called as criterion(output, target); target= describes the target's shape and dtype"
    return "the exception above is the cause"
