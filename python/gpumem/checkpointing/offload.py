"""What autograd saves of a region, kept in the host's memory until the backward pass asks for it.

`torch.autograd.graph.save_on_cpu` does the same tensor by tensor: weights are sent too, a tensor that two
operations save is sent twice, and of a view that is not dense a copy is made on the device first. Here each storage
is sent once, weights and buffers stay, and what is small is not worth the journey. Copies are queued on the stream
of the computation, so they need no synchronization and take their time from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

LEAST_BYTES = 1 << 20
"""Storages below this stay on the device: a transfer takes microseconds before its first byte."""


def to_host(flat: torch.Tensor) -> Any:
    """A copy in pinned memory of a one-dimensional tensor that is a whole storage."""
    host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    return host.copy_(flat, non_blocking=True)


def to_device(host: Any, device: torch.device) -> torch.Tensor:
    """The way back."""
    flat: torch.Tensor = host.to(device, non_blocking=True)
    return flat


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether it is worth sending: on a GPU, dense in memory, not small."""
    return tensor.is_cuda and tensor.layout == torch.strided and tensor.untyped_storage().nbytes() >= LEAST_BYTES


class _Sent:
    """A storage on the host; once it is back it stays until the last tensor saved of it is let go of."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._of = StorageWeakRef(storage)
        self._version = tensor._version
        self._device = tensor.device
        count = storage.nbytes() // tensor.element_size()
        self._host: Any = to_host(tensor.as_strided((count,), (1,), 0))
        self._back: torch.Tensor | None = None

    def is_still(self, tensor: torch.Tensor) -> bool:
        """Whether the storage has not been freed or written to since."""
        return not self._of.expired() and self._version == tensor._version

    def back(self) -> torch.Tensor:
        """The storage on the device again."""
        if self._back is None:
            self._back = to_device(self._host, self._device)
            self._host = None
        return self._back


class Offloaded(saved_tensors_hooks):
    """Context in which what autograd saves goes to the host.

    Args:
        modules: What runs in it; its parameters and buffers stay where they are.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        stays = {
            tensor.untyped_storage()._cdata
            for module in modules
            for tensor in (*module.parameters(), *module.buffers())
        }
        sent: dict[int, _Sent] = {}
        self._sent = sent

        def pack(tensor: torch.Tensor) -> Any:
            key = tensor.untyped_storage()._cdata
            if key in stays or not is_on_device(tensor):
                return tensor
            with torch.no_grad():
                if key not in sent or not sent[key].is_still(tensor):
                    sent[key] = _Sent(tensor)
            return sent[key], tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()

        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, torch.Tensor):
                return packed
            storage, dtype, shape, strides, offset = packed
            with torch.no_grad():
                return storage.back().view(dtype).as_strided(shape, strides, offset)  # type: ignore[no-any-return]

        super().__init__(pack, unpack)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._sent.clear()
