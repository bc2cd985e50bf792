"""What all sources share: the result type, imports that fail with the pip command, and names that are nearly right."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumem.errors import InputError

if TYPE_CHECKING:
    from torch import nn

_NEAREST_MAX = 3


@dataclass(frozen=True)
class Source:
    """A model that was asked for by name.

    Attributes:
        model: The module, in the mode in which the library builds it.
        input: Description of one sample, for `gpumem.extraction.inputs.parse_input`; None when nothing tells.
        description: What was built, in one line.
        assumptions: What was guessed, one sentence each.
    """

    model: nn.Module
    input: Any
    description: str
    assumptions: list[str] = field(default_factory=list)


def load(module: str, package: str) -> Any:
    """Import a library that is not a dependency of gpumem.

    Raises:
        InputError: if it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise InputError(f"{package} is not installed", f"pip install {package}") from error


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names most similar to `name`, best first; those that contain it come before those that resemble it."""
    names = sorted(set(known))
    lower = name.lower()
    containing = sorted((other for other in names if lower and lower in other.lower()), key=len)
    similar = difflib.get_close_matches(lower, names, n=_NEAREST_MAX, cutoff=0.5)
    return list(dict.fromkeys([*containing[:_NEAREST_MAX], *similar]))[:_NEAREST_MAX]


def nearest_hint(name: str, known: Iterable[str], otherwise: str) -> str:
    """The hint for an unknown name: the nearest ones, or `otherwise` when none is near."""
    near = nearest(name, known)
    return f"nearest: {', '.join(near)}" if near else otherwise
