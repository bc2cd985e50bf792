"""From the name of a region to the modules it means, with an error for every name that means none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from gpumem.checkpointing.options import nearest
from gpumem.errors import RegionError

_SEGMENT = re.compile(r"(?P<path>.*)\[(?P<start>\d+):(?P<stop>\d+)\]")
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule")


@dataclass(frozen=True)
class Place:
    """Where a region is.

    Attributes:
        name: As it was given.
        path: Dotted path of the module (the empty string for the model itself).
        module: The module.
        members: `(start, stop)` of a segment of its members, or None for the whole module.
    """

    name: str
    path: str
    module: nn.Module
    members: tuple[int, int] | None


def has_forward(module: nn.Module) -> bool:
    """Whether calling the module does anything (`nn.ModuleList` and `nn.ModuleDict` have no forward)."""
    return "forward" in module.__dict__ or type(module).forward is not nn.Module.forward


def is_plain_sequential(module: nn.Module) -> bool:
    """Whether its forward is that of `nn.Sequential`: its members in order, one value through."""
    return type(module).forward is nn.Sequential.forward and "forward" not in module.__dict__


def check_unwrapped(model: nn.Module) -> None:
    """Refuse models that are wrapped already.

    Raises:
        RegionError: `torch.compile`, DDP, FSDP or DataParallel is around the model.
    """
    kind = type(model).__name__
    if kind in _WRAPPERS:
        inner = "_orig_mod" if kind == "OptimizedModule" else "module"
        raise RegionError(
            f"the model is wrapped already ({kind}), and its modules have other names",
            f"apply to the module inside (.{inner}) before torch.compile, DDP or FSDP wraps it",
        )


def find_place(model: nn.Module, name: object) -> Place:
    """The place that `name` means in `model`.

    Raises:
        RegionError: no such module, a module that is never called, or members that a container does not have.
    """
    if not isinstance(name, str):
        raise RegionError(f"a region is named by a module path, not by {name!r}")
    match = _SEGMENT.fullmatch(name)
    path = match["path"] if match else name
    module = _module_at(model, path)
    if match:
        return _segment(name, path, module, int(match["start"]), int(match["stop"]))
    if isinstance(module, torch.jit.ScriptModule):
        raise RegionError(f"'{name}' is a TorchScript module, whose forward cannot be replaced")
    if not has_forward(module):
        inside = list(_called_inside(path, module))
        raise RegionError(
            f"'{name}' ({type(module).__name__}) has no forward of its own: only what is called can be a region",
            f"regions in it: {', '.join(inside[:4])}{', ...' if len(inside) > 4 else ''}" if inside else "",
        )
    return Place(name, path, module, None)


def _module_at(model: nn.Module, path: str) -> nn.Module:
    module = model
    for part in path.split(".") if path else ():
        inner = module._modules.get(part)
        if inner is None:
            known = [known for known, _ in model.named_modules(remove_duplicate=False) if known]
            raise RegionError(f"{type(model).__name__} has no module '{path}'", nearest(path, known))
        module = inner
    return module


def _segment(name: str, path: str, module: nn.Module, start: int, stop: int) -> Place:
    if not is_plain_sequential(module):
        raise RegionError(
            f"'{name}' is a run of members, but '{path}' ({type(module).__name__}) is not an nn.Sequential with its "
            "own forward",
            "name a module instead",
        )
    if not start < stop <= len(module._modules):
        raise RegionError(f"'{name}' is no run of members: '{path}' has {len(module._modules)}, counted from 0")
    return Place(name, path, module, (start, stop))


def _called_inside(path: str, module: nn.Module) -> Iterator[str]:
    """Paths of the outermost modules in a container that have a forward."""
    for name, inner in module.named_children():
        inner_path = f"{path}.{name}" if path else name
        if has_forward(inner):
            yield inner_path
        else:
            yield from _called_inside(inner_path, inner)
