"""Hints are written with Python's keywords; on the command line they are shown with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection

from gpumem.errors import GpumemError

_KEYWORD = re.compile(r"""\b(?P<name>[a-z_]+)=(?:(?P<quote>["'])(?P<value>.*?)(?P=quote)|(?=[\s,;.)]|$))""")
_PYTHON_ONLY = ("criterion", "step", "target")
_SAID_ELSE = {
    "gpumem.gpus()": "`gpumem gpus`",
    "the exception above is the cause": "`gpumem --traceback` before the command shows where it was raised",
}


def error_text(error: GpumemError, options: Collection[str]) -> str:
    """What stands on stderr after `error: `; its hint names options instead of keywords.

    Args:
        error: What was raised.
        options: Keywords that the command line has as options, such as `host_reads` for `--host-reads`.
    """
    return f"{error.message}\n  hint: {hint_text(error.hint, options)}" if error.hint else error.message


def hint_text(hint: str, options: Collection[str]) -> str:
    """`hint` for someone who typed a command."""

    def option(match: re.Match[str]) -> str:
        if match["name"] not in options:
            return match[0]
        name = f"--{match['name'].replace('_', '-')}"
        return name if match["value"] is None else f"{name} {shlex.quote(match['value'])}"

    told = _KEYWORD.sub(option, hint)
    for python, command in _SAID_ELSE.items():
        told = told.replace(python, command)
    unavailable = [name for name in _PYTHON_ONLY if re.search(rf"\b{name}=", hint)]
    if unavailable:
        told += f" ({', '.join(f'{name}=' for name in unavailable)}: in Python only)"
    return told
