"""Python that the autograd engine calls sees CUDA devices, as the forward pass does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from gpumem.api import extract

_seen: dict[str, set[str]] = {}


def _see(place: str, tensor: torch.Tensor) -> torch.Tensor:
    _seen.setdefault(place, set()).add(f"{tensor.device} {tensor.is_cuda} {torch.empty(1, device='cuda').device}")
    return tensor


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return _see("forward", x) * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return _see("backward", grad) * 2 + 0 * _see("saved", x)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.layers
        x = first(x)
        if x.requires_grad:
            x.register_hook(lambda grad: _see("hook", grad) * 1)
        with saved_tensors_hooks(lambda t: _see("pack", t), lambda t: _see("unpack", t)):
            x = second(x) * x

        def inner(y: torch.Tensor) -> torch.Tensor:
            return _Doubled.apply(torch.relu(_see("inner", y)))  # type: ignore[no-any-return]

        def outer(y: torch.Tensor) -> torch.Tensor:
            return torch.relu(checkpoint(inner, third(_see("outer", y)), use_reentrant=False))

        return checkpoint(outer, x, use_reentrant=False)


def test_every_call_sees_cuda() -> None:
    _seen.clear()
    extract(_Model(), (8,))
    assert set(_seen) == {"forward", "backward", "saved", "hook", "pack", "unpack", "inner", "outer"}
    assert {place: seen for place, seen in _seen.items() if seen != {"cuda:0 True cuda:0"}} == {}
