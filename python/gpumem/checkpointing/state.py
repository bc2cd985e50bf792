"""State that modules change in their forward pass, which running a region again must not change a second time.

Batch norm would update its running statistics twice per step. While a region is run again its momentum is 0: the same
kernels run on the same tensors, so memory is what it was, and `running * 1 + batch * 0` leaves the statistics as they
are. (fairscale's `patch_batchnorm` reaches the same by switching tracking off in the first of the two runs; without
reentrant autograd that would change which tensors are saved, and how many.) Spectral norm takes a step of its power
iteration at each call, so a second run would see another weight: its two vectors are kept per call and put back for
the second run. Instance norm with running statistics writes to copies of them meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

Slot = tuple[nn.Module, str]
_RUNNING = ("running_mean", "running_var")
_COUNTER = "num_batches_tracked"


def _within(modules: Sequence[nn.Module]) -> Iterator[nn.Module]:
    seen: set[nn.Module] = set()
    for module in modules:
        for inner in module.modules():
            if inner not in seen:
                seen.add(inner)
                yield inner


def _spectral_vectors(module: nn.Module) -> list[str]:
    """Names of the buffers that a power iteration changes at each call."""
    if isinstance(module, _SpectralNorm):
        return [name for name in ("_u", "_v") if name in module._buffers]
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
    return [f"{hook.name}{end}" for hook in hooks for end in ("_u", "_v")]


def stand_ins(modules: Sequence[nn.Module]) -> list[tuple[Slot, torch.Tensor]]:
    """Copies of small buffers within `modules`, taken before a call, for their place when the call is repeated."""
    found: list[tuple[Slot, torch.Tensor]] = []
    for module in _within(modules):
        if not module.training:
            continue
        names = _RUNNING if isinstance(module, _InstanceNorm) else _spectral_vectors(module)
        buffers = ((name, module._buffers.get(name)) for name in names)
        found += [((module, name), buffer.detach().clone()) for name, buffer in buffers if buffer is not None]
        if isinstance(module, nn.SyncBatchNorm) and module.track_running_stats:
            # It insists on a counter, which may be on the host.
            found.append(((module, _COUNTER), torch.zeros((), dtype=torch.long)))
    return found


class KeptState:
    """Context in which the modules run without leaving a trace in their running state.

    Args:
        modules: Roots of what runs.
        buffers: What `stand_ins` returned for the call that is repeated.
        once: Whether the call is repeated only once, as under selective checkpointing, which also counts operations:
            then no copies are made here.
    """

    def __init__(self, modules: Sequence[nn.Module], buffers: list[tuple[Slot, torch.Tensor]], *, once: bool) -> None:
        self._modules = modules
        self._buffers = buffers
        self._once = once

    def __enter__(self) -> None:
        self._undo = contextlib.ExitStack()
        for module in _within(self._modules):
            if isinstance(module, _BatchNorm) and module.training and module.track_running_stats:
                self._replace(module.__dict__, "momentum", 0.0)
                self._replace(module._buffers, _COUNTER, None)
        for (module, name), before in self._buffers:
            self._replace(module._buffers, name, before if self._once else before.clone())

    def _replace(self, names: dict[str, Any], name: str, value: Any) -> None:
        if name in names:
            self._undo.callback(names.__setitem__, name, names[name])
            names[name] = value

    def __exit__(self, *error: object) -> None:
        self._undo.close()


@contextlib.contextmanager
def out_of_place(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Context in which activations and dropouts that would overwrite their input write to a new tensor.

    A kept output must not be overwritten: `Conv2d` followed by `ReLU(inplace=True)` would lose it. Values are the same.
    """
    with contextlib.ExitStack() as undo:
        for module in _within(modules):
            if module.__dict__.get("inplace") is True:
                undo.callback(module.__dict__.__setitem__, "inplace", True)
                module.__dict__["inplace"] = False
        yield


def buffer_versions(modules: Sequence[nn.Module]) -> dict[Slot, int]:
    """How often each buffer was changed, those left out that `KeptState` takes care of."""
    return {
        (module, name): buffer._version
        for module in _within(modules)
        if not isinstance(module, (_BatchNorm, _InstanceNorm, _SpectralNorm))
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_inference() and name not in _spectral_vectors(module)
    }
