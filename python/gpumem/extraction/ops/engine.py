"""Recognising who calls: a formula of the autograd engine, a user's backward, a recomputed forward, a mode."""

from __future__ import annotations

import sys
from types import FrameType

import torch

from gpumem.extraction.recorder import Recorder

_ENGINE_FRAME = "_engine_run_backward"
# The recorder's dispatch, and autocast's Python kernel calling the op again.
_BETWEEN = frozenset({"__torch_dispatch__", "__call__", "kernel"})


def node_name() -> str:
    """Name of the autograd node that is being evaluated, or nothing."""
    node = torch._C._current_autograd_node()
    return "" if node is None else node.name()


def called_by_engine(rec: Recorder) -> bool:
    """Whether C++ called the op whose handler calls this: no Python frame lies between the engine and the dispatch."""
    if not rec.in_backward or torch.is_grad_enabled():
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in _BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == _ENGINE_FRAME


def under_mode() -> bool:
    """Whether the program has a dispatch mode of its own active (selective checkpointing, a counter of FLOPs).

    C++ then counts every tensor as subclass-like (`ATen/TensorSubclassLikeUtils.h`). Only a composite op's choice can
    ask: below it the modes are off the stack.
    """
    return torch._C._len_torch_dispatch_stack() > 1
