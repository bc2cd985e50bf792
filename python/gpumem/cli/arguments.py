"""What is typed on the command line, as the values that the Python API takes."""

from __future__ import annotations

import ast
import re
from typing import Any

from gpumem.errors import InputError
from gpumem.sources import dtype_named

_SHAPE = re.compile(r"\d+(,\d+)*")
_INPUT_HINT = (
    "write the shape of one sample, 3,224,224; with a type, 1024:int64; several inputs, 3,64,64;10; "
    "or by argument name, input_ids=128:int64;labels=128:int64"
)


def parse_input(text: str) -> Any:
    """Read `--input`: `SHAPE[:DTYPE]`, several separated by `;`, optionally each with `NAME=` in front.

    Returns:
        A description for `gpumem.extraction.inputs.parse_input`.

    Raises:
        InputError: if it cannot be read.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise InputError("the input's shape is empty", _INPUT_HINT)
    named = ["=" in part for part in parts]
    if all(named):
        return {name.strip(): _tensor(value.strip()) for name, _, value in (part.partition("=") for part in parts)}
    if any(named):
        raise InputError(f"input {text!r} mixes named and unnamed inputs", _INPUT_HINT)
    tensors = [_tensor(part) for part in parts]
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _tensor(text: str) -> Any:
    shape_text, _, dtype_text = text.replace(" ", "").partition(":")
    if not _SHAPE.fullmatch(shape_text):
        raise InputError(f"cannot read the input shape {text!r}", _INPUT_HINT)
    shape = tuple(int(size) for size in shape_text.split(","))
    return (shape, dtype_named(dtype_text)) if dtype_text else shape


def parse_optimizer(text: str) -> str | tuple[str, dict[str, Any]]:
    """Read `--optimizer`: `NAME`, or `NAME:KEY=VALUE,...` with Python values (`sgd:momentum=0.9,nesterov=True`).

    Raises:
        InputError: if an argument cannot be read.
    """
    name, colon, rest = text.partition(":")
    return (name, _keywords(rest)) if colon else text


def _keywords(text: str) -> dict[str, Any]:
    unreadable = InputError(f"cannot read the optimizer's arguments {text!r}", "write sgd:momentum=0.9,nesterov=True")
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
