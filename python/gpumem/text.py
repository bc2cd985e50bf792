"""Inputs and optimizers written as text, on the command line and in Python: `"3,224,224"`, `"sgd(momentum=0.9)"`."""

from __future__ import annotations

import ast
import re
from typing import Any

from gpumem.errors import InputError

_SHAPE = re.compile(r"[0-9]+(,[0-9]+)*")
_INPUT_HINT = (
    "write the shape of one sample, 3,224,224; with a type, 1024:int64; one number, :int64; several inputs, "
    "3,64,64;10; or by argument name, input_ids=128:int64;labels=128:int64"
)
_OPTIMIZER_HINT = "write sgd:momentum=0.9,nesterov=True, or sgd(momentum=0.9)"
_CALL = re.compile(r"(?P<name>[^(:]+)(?::(?P<after>.*)|\((?P<within>.*?)\)?\s*)", re.DOTALL)


def input_from_text(text: str) -> Any:
    """Read an input: `SHAPE[:DTYPE]`, several separated by `;`, optionally each with `NAME=` in front.

    Returns:
        A description for `gpumem.extraction.inputs.parse_input`.

    Raises:
        InputError: if it cannot be read.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise InputError("the input's shape is empty", _INPUT_HINT)
    named = [bool(re.match(r"\s*\w+\s*=", part)) for part in parts]
    if all(named):
        pairs = [(name.strip(), value.strip()) for name, _, value in (part.partition("=") for part in parts)]
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise InputError(f"input {text!r} names an argument twice", _INPUT_HINT)
        return {name: _tensor(value) for name, value in pairs}
    if any(named):
        raise InputError(f"input {text!r} mixes named and unnamed inputs", _INPUT_HINT)
    tensors = [_tensor(part) for part in parts]
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _tensor(text: str) -> Any:
    shape_text, colon, dtype_text = text.replace(" ", "").partition(":")
    if shape_text.startswith("(") and shape_text.endswith(")"):
        shape_text = shape_text[1:-1].removesuffix(",")
    # One number per sample, such as a class index, has no shape but a type.
    if not _SHAPE.fullmatch(shape_text) and (shape_text or not dtype_text):
        raise InputError(f"cannot read the input shape {text!r}", _INPUT_HINT)
    shape = tuple(int(size) for size in shape_text.split(",") if size)
    return (shape, _dtype(dtype_text)) if colon else shape


def _dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"torch has no dtype {name!r}", "for example float32, bfloat16, int64 or bool")
    return dtype


def optimizer_from_text(text: str) -> str | tuple[str, dict[str, Any]]:
    """Read an optimizer: `NAME`, `NAME:KEY=VALUE,...` or `NAME(KEY=VALUE, ...)`, with Python values.

    Raises:
        InputError: if an argument cannot be read.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        return text.strip()
    name, after, within = match["name"].strip(), match["after"], match["within"]
    if after is not None:
        return name, _keywords(after)
    if not text.rstrip().endswith(")"):
        raise InputError(f"the parenthesis in the optimizer {text!r} is not closed", _OPTIMIZER_HINT)
    return (name, _keywords(within)) if within.strip() else name


def _keywords(text: str) -> dict[str, Any]:
    unreadable = InputError(f"cannot read the optimizer's arguments {text!r}", _OPTIMIZER_HINT)
    try:
        call = ast.parse(f"_({text})", mode="eval").body
        words = call.keywords if isinstance(call, ast.Call) and not call.args else []
        values = {word.arg: ast.literal_eval(word.value) for word in words}
    except (SyntaxError, ValueError) as error:
        raise unreadable from error
    named = {name: value for name, value in values.items() if name is not None}
    if not named or len(named) != len(words):
        raise unreadable
    return named
