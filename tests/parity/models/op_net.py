"""The net around one op: a matrix product in front, so that the op needs a gradient, and one to 10 classes behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LAYOUTS: dict[str, tuple[int, ...]] = {
    "rows": (128,),
    "tokens": (64, 128),
    "lines": (8, 64),
    "images": (8, 16, 16),
    "volumes": (4, 6, 8, 8),
}
"""Sample shape of each layout."""


@dataclasses.dataclass(frozen=True)
class Op:
    """One op under test.

    Attributes:
        layout: Key of `LAYOUTS`.
        build: Makes the function `(hidden, input) -> output`, or a module that takes the hidden tensor.
    """

    layout: str
    build: Callable[[], Any]


def function(layout: str, body: Function) -> Op:
    """An op given as a function of the hidden tensor and the input."""
    return Op(layout, lambda: body)


def module(layout: str, build: Callable[[], nn.Module]) -> Op:
    """An op given as a module of one argument."""
    return Op(layout, build)


class OpNet(nn.Module):
    """`input @ weight -> op -> flatten -> @ head`; a scalar from the op is returned as it is."""

    def __init__(self, op: Op) -> None:
        super().__init__()
        width = LAYOUTS[op.layout][-1]
        self.weight = nn.Parameter(torch.empty(width, width))
        body = op.build()
        if isinstance(body, nn.Module):
            self.op = body
        self._body = body
        with torch.no_grad():
            x = torch.rand(2, *LAYOUTS[op.layout])
            output = self._apply_op(x, x)
        self.head = nn.Parameter(torch.empty(output.numel() // 2, 10)) if output.dim() else None

    def _apply_op(self, hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.op(hidden) if hasattr(self, "op") else self._body(hidden, x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the op between two matrix products."""
        output = self._apply_op(x @ self.weight, x)
        return output if self.head is None else output.reshape(x.shape[0], -1) @ self.head
