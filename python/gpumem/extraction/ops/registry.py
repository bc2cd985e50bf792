"""Where the op families register: handlers (kernel level), choices (composite level), and the list of verified ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from gpumem.extraction.recorder import Handler

_F = TypeVar("_F", bound=Callable[..., Any])

HANDLERS: dict[Any, Handler] = {}
"""ATen overload to the handler that answers for it under the recorder."""

CHOICES: dict[str, Callable[..., Any]] = {}
"""ATen name (`softmax.int`) of a composite op to the Python function that makes CUDA's choice and calls inner ops."""

VERIFIED: frozenset[str] = frozenset(
    line
    for line in (Path(__file__).parent / "verified.txt").read_text(encoding="ascii").splitlines()
    if line and not line.startswith("#")
)
"""ATen overloads (`aten.add.Tensor`) that ran in a trace whose events equalled CUDA's; written by the parity sweep."""


def handles(*ops: Any) -> Callable[[Handler], Handler]:
    """Register a handler `(recorder, func, args, kwargs) -> output` for these ATen overloads."""

    def register(handler: Handler) -> Handler:
        for op in ops:
            if op in HANDLERS:
                raise ValueError(f"{op} has two handlers")
            HANDLERS[op] = handler
        return handler

    return register


def chooses(name: str, calls: str | None = None) -> Callable[[_F], _F]:
    """Register the CUDA branch of a composite op; also caught when C++ calls the op.

    Args:
        name: The composite op.
        calls: The op that the branch exists for: a torch without it runs the composite on CUDA too.
    """

    def register(choice: _F) -> _F:
        if name in CHOICES:
            raise ValueError(f"{name} has two choices")
        if calls is None or hasattr(torch.ops.aten, calls):
            CHOICES[name] = choice
        return choice

    return register
