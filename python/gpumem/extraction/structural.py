"""A copy of a module's structure whose tensors are meta: no weight is read, copied or moved."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from gpumem.errors import ExtractionError

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

    Ties stay ties. Plain leaf tensors kept as attributes are copied where they are, as a real `.cuda()` leaves them
    (those on an accelerator become meta); so are the contents of user classes. What cannot be copied (locks, files,
    generators) is shared. Parameter gradients are not taken along. The same as `copy.deepcopy` with a prefilled memo,
    without its cost for the dictionaries that every module has.

    Raises:
        ExtractionError: a container or a module in an attribute holds what cannot be copied.
    """
    memo: dict[int, Any] = {}
    copies: list[tuple[nn.Module, nn.Module]] = []
    compiled: list[Any] = []
    for module in model.modules():
        for tensor in _tensors_to_replace(module):
            if id(tensor) not in memo:
                memo[id(tensor)] = meta_twin(tensor)
        if is_compiled(module):
            compiled.append(module)
            continue
        if _copies_itself(module):
            continue
        twin = object.__new__(type(module))
        memo[id(module)] = twin
        copies.append((module, twin))
    for module in reversed(compiled):
        # Run uncompiled: the module it was made from stands in its place.
        memo[id(module)] = copy.deepcopy(module._orig_mod, memo)
    # Children first: a class with its own `__setstate__` may look at them.
    for module, twin in reversed(copies):
        twin.__dict__.update(_copied_state(module, memo))
    return copy.deepcopy(model, memo)


def is_compiled(module: nn.Module) -> bool:
    """Whether it was made by `torch.compile`."""
    # Without dynamo loaded nothing can have been, and importing it takes a second.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def _copies_itself(module: nn.Module) -> bool:
    """Whether the class says how it is copied; `__setstate__` of PyTorch's own layers concerns old checkpoints."""
    for name in ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__", "__setstate__"):
        method = getattr(type(module), name, None)
        if method is None or method is getattr(object, name, None):
            continue
        # Dynamo replaces some of nn.Module's own.
        inherited = method is getattr(nn.Module, name, None)
        if not inherited and not getattr(method, "__module__", "").startswith("torch.nn.modules."):
            return True
    return False


def _copied_state(module: nn.Module, memo: dict[int, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    # A list: another thread may be training the module and setting attributes.
    for name, value in list(vars(module).items()):
        if name == "_compiled_call_impl":
            # `module.compile()`: bound to the original.
            state[name] = None
        elif isinstance(value, _ATOMIC):
            state[name] = value
        elif name in _CONTAINERS:
            state[name] = {key: copy.deepcopy(item, memo) for key, item in list(value.items())}
        elif isinstance(value, dict) and not value:
            state[name] = type(value)()
        elif isinstance(value, list) and any(isinstance(item, RemovableHandle) for item in list(value)):
            # Handles take hooks off the original (transformers keeps some for gradient checkpointing).
            state[name] = [_copied(item, memo, name) for item in list(value) if not isinstance(item, RemovableHandle)]
        else:
            state[name] = _copied(value, memo, f"{type(module).__name__}.{name}")
    return state


def _copied(value: Any, memo: dict[int, Any], name: str) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except (TypeError, NotImplementedError, RuntimeError) as error:
        if isinstance(value, (dict, list, tuple, set, nn.Module)):
            raise ExtractionError(
                f"the attribute {name} cannot be copied: {error}",
                "the model's structure is copied so that it stays untouched: set the attribute to None meanwhile",
            ) from error
        # Locks, streams, handles: no tensors are in them, so the copy can share them.
        return value


def _tensors_to_replace(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from (p for p in list(module._parameters.values()) if p is not None)
    yield from (b for b in list(module._buffers.values()) if b is not None)
    for name, value in list(vars(module).items()):
        if name not in _CONTAINERS:
            yield from _results_in(value)


def _results_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors that deepcopy refuses (results of a forward pass, as old weight_norm keeps) or would copy on a GPU."""
    if isinstance(value, torch.Tensor):
        if not value.is_leaf or value.device.type not in ("cpu", "meta"):
            yield value
    elif isinstance(value, (list, tuple)):
        for item in list(value):
            yield from _results_in(item)
    elif isinstance(value, dict):
        for item in list(value.values()):
            yield from _results_in(item)


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
