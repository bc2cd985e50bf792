"""What is typed on the command line, as the values that the Python API takes."""

from __future__ import annotations

import ast
import re
from typing import Any

from gpumem.errors import InputError

_SHAPE = re.compile(r"\d+(,\d+)*")
_INPUT_HINT = (
    "write the shape of one sample, 3,224,224; with a type, 1024:int64; several inputs, 3,64,64;10; "
    "or by argument name, input_ids=128:int64;labels=128:int64"
)


def parse_input(text: str) -> Any:
    """Read `--input`: `SHAPE[:DTYPE]`, several separated by `;`, optionally each with `NAME=` in front.

    Returns:
        A description for `gpumem.extract.inputs.parse_input`.

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
    return (shape, _dtype(dtype_text)) if dtype_text else shape


def _dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"torch has no dtype {name!r}", "for example float32, bfloat16, int64 or bool")
    return dtype


def parse_optimizer(text: str) -> str | tuple[str, dict[str, Any]]:
    """Read `--optimizer`: `NAME`, or `NAME:KEY=VALUE,...` with Python values (`sgd:momentum=0.9,nesterov=True`).

    Raises:
        InputError: if an argument cannot be read.
    """
    name, colon, rest = text.partition(":")
    if not colon:
        return text
    try:
        call = ast.parse(f"_({rest})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise InputError(
            f"cannot read the optimizer's arguments {rest!r}", "write sgd:momentum=0.9,nesterov=True"
        ) from error
    if None in arguments:
        raise InputError(f"cannot read the optimizer's arguments {rest!r}", "write sgd:momentum=0.9,nesterov=True")
    return name, {str(key): value for key, value in arguments.items()}
