"""Build a model without its weights: every parameter becomes a meta tensor the moment it is registered.

Constructors run on the CPU, so drop-path schedules and index tables have their values (under `torch.device("meta")`
they would have none), while initialisers meet meta tensors and cost nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode

# Constructors compute with tables and schedules, which are smaller; experts of a language model are tens of gigabytes.
_LARGE_BYTES = 1 << 28


class _LargeOnMeta(TorchFunctionMode):
    """`torch.empty` of a large tensor, which becomes a parameter, needs no place on the host even for a moment."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and kwargs.get("device") is None:
            on_meta = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
            if on_meta.numel() * on_meta.element_size() >= _LARGE_BYTES:
                return on_meta
        return func(*args, **kwargs)


@contextlib.contextmanager
def _meta_parameters() -> Iterator[None]:
    thread = threading.get_ident()

    def to_meta(module: nn.Module, name: str, parameter: Any) -> nn.Parameter | None:
        if threading.get_ident() != thread or not isinstance(parameter, nn.Parameter) or parameter.is_meta:
            return None
        if isinstance(parameter, UninitializedParameter):
            return None
        return nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    hook: Any = to_meta  # torch's annotation says that hooks return None; what they return replaces the parameter.
    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def build_empty(build: Callable[[], nn.Module]) -> nn.Module:
    """Call `build`, a library's constructor, with meta parameters; with real ones where it computes with their values.

    The CPU random state is the same afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            with _meta_parameters(), _LargeOnMeta():
                return build()
        except (NotImplementedError, RuntimeError):
            # Some constructors mix their parameters with CPU tensors or read them (timm's swinv2_cr and vitamin). A
            # failure with another cause is raised again from here.
            return build()
