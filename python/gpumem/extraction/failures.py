"""What a model raised while it was traced, told with the place, the phase and what is usually wrong there."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from gpumem.errors import DataDependentError, ExtractionError
from gpumem.extraction.recorder import Recorder
from gpumem.extraction.traceable import SPARSE

_HOST_MEETS_DEVICE = ("on the same device", "in the same device", "is not on the expected device")
_WANTS_INTEGERS = "scalar types: Long, Int"
_DTYPES_DIFFER = ("must have the same dtype", "should be the same")
_NO_META_KERNEL = re.compile(r"'?aten::(\w+)'?.*\bmeta\b", re.IGNORECASE)
# Composite functions that refuse meta tensors by themselves.
_REFUSES_META = {
    "Tensor.item() cannot be called on meta tensors": "_local_scalar_dense",
    "cannot repeat_interleave a meta tensor without output_size": "repeat_interleave",
}
_VALUE_TAGS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_PLACES = {
    "setup": "when its optimizer was made",
    "forward": "in the criterion",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's step",
}


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
    path = None if rec.failed_layer is None else rec.layers[rec.failed_layer]
    failed = f"{subject.model} with input {subject.inputs} failed {_place(path, rec.phase, subject)}"
    op = _op_that_needs_values(str(error))
    if op is not None:
        return DataDependentError(
            f"{failed}: what {op} returns depends on the values of tensors, which a trace has not",
            "trace a part without it, or replace it by a computation on shapes",
            path or "",
            op,
        )
    return ExtractionError(f"{failed}: {type(error).__name__}: {error}", _hint(str(error), path, rec.phase, subject))


def _place(path: str | None, phase: str, subject: Subject) -> str:
    if path is not None:
        return f"in the forward pass of '{path}'" if path else "in its forward pass"
    if subject.own_step and phase != "setup":
        return "in your step function"
    return _PLACES[phase]


def _op_that_needs_values(text: str) -> str | None:
    for refusal, name in _REFUSES_META.items():
        if refusal in text:
            return f"aten::{name}"
    match = _NO_META_KERNEL.search(text)
    packet = None if match is None else getattr(torch.ops.aten, match[1], None)
    if match is None or packet is None:
        return None
    overloads = (getattr(packet, name) for name in packet.overloads())
    return f"aten::{match[1]}" if any(tag in each.tags for each in overloads for tag in _VALUE_TAGS) else None


def _hint(text: str, path: str | None, phase: str, subject: Subject) -> str:
    if any(part in text for part in _HOST_MEETS_DEVICE):
        return (
            "a tensor stays on the host when the model is moved to CUDA: register it as a buffer, keep modules in a "
            "ModuleList, or create it with device=x.device"
        )
    if _WANTS_INTEGERS in text:
        return (
            "inputs without a type are float32: give integers theirs, input='128:int64', or by argument name "
            "input='input_ids=128:int64'"
        )
    if path is not None and any(part in text for part in _DTYPES_DIFFER):
        return (
            "the exception is the model's own; an input without a type is float32: for a 16-bit model pass "
            "precision='fp16' or precision='bf16', or the input with its type, input='3,224,224:float16'"
        )
    if "SparseTensorImpl" in text:
        return f"sparse gradients cannot be traced ({SPARSE}): use sparse=False"
    if "targets should not be none" in text.lower():
        return (
            "detection models take a list of images and their targets, which only your own step can make: pass step= "
            "that calls model(list(batch), targets), together with host_reads='zeros', since they choose boxes by value"
        )
    if path is not None:
        return "the exception is the model's own: check the input's shape, dtype and argument names"
    if subject.own_step:
        return "step is called as step(model, optimizer, batch); batch is the input, or (input, target) with target="
    if phase == "forward":
        return "the criterion is called as criterion(output, target); target= describes the target's shape and dtype"
    return "the exception above is the cause"
