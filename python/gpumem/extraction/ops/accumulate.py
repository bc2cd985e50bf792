"""Gradients that meet at one node: the engine adds in place on CUDA, out of place on meta.

`torch/csrc/autograd/input_buffer.cpp` accumulates into the old buffer when nothing else holds it, unless a tensor is
"subclass-like", which meta tensors and any active dispatch mode are. The handler of `aten::add` recognises the engine's
own addition and does it in place. What "held once" looks like from inside a handler differs between versions, so it is
measured with a toy graph once per process.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.extraction.memory_format import is_dense
from gpumem.extraction.ops.engine import node_name
from gpumem.extraction.ops.pointwise import like_operands
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder

aten = torch.ops.aten
_ENGINE_FRAME = "_engine_run_backward"
# Nodes whose formula (`FunctionsManual.cpp`) adds to a temporary of its own, out of place.
_ADDING_FORMULAS = frozenset({"Atan2Backward0", "LogcumsumexpBackward0", "StdMeanBackward0", "VarMeanBackward0"})


def _use_counts(tensor: torch.Tensor) -> tuple[int, int]:
    tensor_any: Any = tensor
    storage = tensor.untyped_storage()
    return tensor_any._use_count(), torch._C._storage_Use_Count(storage._cdata)


class _Calibrate(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: tuple[int, int] | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor and not torch.is_grad_enabled() and self.counts is None:
            return self._add(func, args)
        return func(*args, **(kwargs or {}))

    def _add(self, func: Any, args: tuple[Any, ...]) -> Any:
        return self._measure(func, args, {})

    def _measure(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        old = args[0]
        self.counts = _use_counts(old)
        return func(*args, **kwargs)


@functools.cache
def held_once_counts() -> tuple[int, int]:
    """Use counts of a gradient buffer that only the engine holds, as a handler of the recorder sees them."""
    x = torch.empty(4, device="meta", requires_grad=True)
    with _Calibrate() as mode:
        left, right = x * 2, x * 3
        (left + right).sum().backward()
    if mode.counts is None:
        raise RuntimeError("the autograd engine did not add two gradients through aten::add")
    return mode.counts  # type: ignore[no-any-return]


@handles(aten.add.Tensor)
def add(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`aten::add`, in place where the engine would accumulate in place on CUDA."""
    old, new = args
    if (
        not kwargs
        and rec.in_backward
        and isinstance(new, torch.Tensor)
        and isinstance(old, torch.Tensor)
        and old.is_meta
        and old.shape == new.shape
        and old.dtype == new.dtype
        and not torch.is_grad_enabled()
        and sys._getframe(2).f_code.co_name == _ENGINE_FRAME
        and is_dense(old)
        and _use_counts(old) == held_once_counts()
        and not (node_name() in _ADDING_FORMULAS and rec.made_by_current_node(old))
    ):
        return old
    return like_operands(func, args, kwargs)
