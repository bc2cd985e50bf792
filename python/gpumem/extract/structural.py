"""A copy of a module's structure whose tensors are meta: no weight is read, copied or moved."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

# Values of these types are shared between a module and its copy, as `copy.deepcopy` does.
_ATOMIC = (
    int,
    float,
    bool,
    complex,
    str,
    bytes,
    type(None),
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    torch.dtype,
    torch.device,
    torch.Size,
)
_CONTAINERS = ("_parameters", "_buffers", "_modules")


def meta_twin(tensor: torch.Tensor) -> torch.Tensor:
    """A meta tensor of the same shape, strides and dtype (a Parameter for a Parameter)."""
    twin = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, tensor.requires_grad)
    return twin.requires_grad_(tensor.requires_grad and tensor.is_leaf)


def meta_copy(model: nn.Module) -> nn.Module:
    """Deep-copy `model` with every parameter, buffer and non-leaf tensor attribute replaced by a meta twin.

    Ties stay ties. Plain leaf tensors kept as attributes are copied where they are, as a real `.cuda()` leaves them;
    so are the contents of user classes. Parameter gradients are not taken along. The same as `copy.deepcopy` with a
    prefilled memo, without its cost for the dictionaries that every module has.

    Raises:
        Whatever a member's own `__deepcopy__` raises.
    """
    memo: dict[int, Any] = {}
    copies: list[tuple[nn.Module, nn.Module]] = []
    for module in model.modules():
        for tensor in _tensors_to_replace(module):
            if id(tensor) not in memo:
                memo[id(tensor)] = meta_twin(tensor)
        if _copies_itself(module):
            continue
        twin = object.__new__(type(module))
        memo[id(module)] = twin
        copies.append((module, twin))
    for module, twin in copies:
        twin.__dict__.update(_copied_state(module, memo))
    return copy.deepcopy(model, memo)


def _copies_itself(module: nn.Module) -> bool:
    """Whether the class says how it is copied; what PyTorch's own layers do in `__setstate__` concerns old checkpoints."""
    for name in ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__"):
        method = getattr(type(module), name, None)
        if method is None or method is getattr(object, name, None):
            continue
        if not getattr(method, "__module__", "").startswith("torch.nn.modules."):
            return True
    return False


def _copied_state(module: nn.Module, memo: dict[int, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, value in vars(module).items():
        if isinstance(value, _ATOMIC):
            state[name] = value
        elif name in _CONTAINERS:
            state[name] = {key: copy.deepcopy(item, memo) for key, item in value.items()}
        elif isinstance(value, dict) and not value:
            state[name] = type(value)()
        else:
            state[name] = copy.deepcopy(value, memo)
    return state


def _tensors_to_replace(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from (p for p in module._parameters.values() if p is not None)
    yield from (b for b in module._buffers.values() if b is not None)
    # Old weight_norm and spectral_norm keep a non-leaf tensor as an attribute, which deepcopy refuses.
    yield from (v for v in vars(module).values() if isinstance(v, torch.Tensor) and not v.is_leaf)


def tensors_in_move_order(model: nn.Module) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """Parameters and buffers in the order in which `model.cuda()` allocates them: children first, ties once.

    Yields:
        `("param" | "buffer", owning module, tensor)`. A buffer object shared by two modules is moved once per module
        by PyTorch; the second copy is made here too, so that each module holds its own from then on.
    """
    seen_modules: set[int] = set()
    seen_tensors: set[int] = set()

    def walk(module: nn.Module) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
        if id(module) in seen_modules:
            return
        seen_modules.add(id(module))
        for child in module.children():
            yield from walk(child)
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in seen_tensors:
                seen_tensors.add(id(parameter))
                yield "param", module, parameter
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            moved = buffer
            if id(buffer) in seen_tensors:
                moved = module._buffers[name] = torch.empty_like(buffer)
            seen_tensors.add(id(moved))
            yield "buffer", module, moved

    yield from walk(model)
