"""Which reads of values by the host are harmless: zero is then what the usual course of a training run takes.

A trace has no values. A read made by PyTorch's own bookkeeping, or by one of the library functions listed here, is
answered with zeros; any other read stops the trace with `DataDependentError`, unless the user allows zeros everywhere.
"""

from __future__ import annotations

import sys
from types import FrameType

_TORCH_MODULES: dict[str, str] = {
    "torch.autograd.graph": "anomaly detection: there is no NaN",
    "torch.amp.grad_scaler": "found_inf is 0: the optimizer steps; the scale is only printed",
    "torch.nn.utils.clip_grad": "error_if_nonfinite: the norm is finite",
    "torch.nn.utils.rnn": "lengths of packed sequences live on the CPU",
    "torch.optim": "the step count of capturable optimizers",
}
"""Modules of PyTorch (and what is below them) whose reads do not change what is allocated, with the reason."""

_LIBRARY_FUNCTIONS: dict[tuple[str, str], str] = {
    ("transformers.masking_utils", ""): "a mask of ones is left out; zeros keep it, as with padding",
    ("transformers.modeling_attn_mask_utils", ""): "the same, in older versions",
    ("transformers.modeling_utils", "warn_if_padding_and_no_attention_mask"): "decides about a warning",
    ("transformers.modeling_flash_attention_utils", ""): "whether positions restart: they do not",
    ("transformers.models.wav2vec2.modeling_wav2vec2", "_compute_mask_indices"): "lengths of padded inputs",
    ("transformers.models.longformer.modeling_longformer", "forward"): "no global attention, as without its mask",
    ("transformers.models.led.modeling_led", "forward"): "no global attention, as without its mask",
    ("transformers.models.fsmt.modeling_fsmt", "make_padding_mask"): "no padding",
    ("transformers.models.t5gemma2.modeling_t5gemma2", "forward"): "no token ends an image",
    ("torchvision.models.detection.transform", ""): "image sizes of a batch",
    ("torchvision.models.detection.generalized_rcnn", ""): "checks that boxes are not degenerate",
}
"""`(module, function)` (or a whole module) of libraries whose reads are answered with zeros, with the reason."""


_PYTHON_NAMES = {
    "aten::_local_scalar_dense": ".item(), or a tensor as a condition or number",
    "aten::_to_copy": ".cpu(), .tolist() or .numpy()",
    "aten::equal": "torch.equal",
}


def described(op: str) -> str:
    """A read as an ATen name, with what stands for it in Python."""
    return f"{op} ({_PYTHON_NAMES[op]})" if op in _PYTHON_NAMES else op


_BETWEEN = ("gpumem.", "torch._ops", "torch.utils._python_dispatch", "torch.overrides", "torch._tensor")


def caller() -> FrameType | None:
    """The innermost Python frame that does not belong to gpumem's tracing, PyTorch's dispatch or `Tensor`'s methods."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_BETWEEN):
            return frame
        frame = frame.f_back
    return None


def is_harmless() -> bool:
    """Whether the read that is going on is made by code for which zero is the usual answer."""
    frame = caller()
    if frame is None:
        return False
    module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
    if any(module == name or module.startswith(f"{name}.") for name in _TORCH_MODULES):
        return True
    return (module, "") in _LIBRARY_FUNCTIONS or (module, function) in _LIBRARY_FUNCTIONS


def where() -> str:
    """`file:line` of the code that reads, for the error's text."""
    frame = caller()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
