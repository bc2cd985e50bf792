"""PyTorch's own peaks, kept when the program resets them, and when they last rose."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_PEAKS = ("requested_bytes.all.peak", "allocated_bytes.all.peak", "reserved_bytes.all.peak")


class Peaks:
    """Watches the allocator of each device.

    Args:
        torch: The imported PyTorch.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._kept: dict[int, list[int]] = {}
        self.steps = 0
        self.settled_after: int | None = None
        self._keep_on_reset()
        # `torch.optim` deletes the name of this module.
        optimizer = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_post_hook(lambda *_: self._step())

    def of(self, device: int) -> tuple[int, int, int]:
        """Peaks of requested, allocated and reserved bytes on `device`."""
        self._update()
        requested, allocated, reserved = self._kept.get(device, [0, 0, 0])
        return requested, allocated, reserved

    def retries(self, device: int) -> tuple[int, int]:
        """How often cached segments were given back for room, and how often there was none."""
        stats = self._stats(device)
        return stats.get("num_alloc_retries", 0), stats.get("num_ooms", 0)

    def _stats(self, device: int) -> dict[str, int]:
        cuda = self._torch.cuda
        return dict(cuda.memory_stats(device)) if cuda.is_initialized() else {}

    def _update(self) -> bool:
        rose = False
        for device in range(self._torch.cuda.device_count()):
            stats = self._stats(device)
            now = [stats.get(name, 0) for name in _PEAKS]
            before = self._kept.setdefault(device, [0, 0, 0])
            rose = rose or any(new > old for new, old in zip(now, before, strict=True))
            self._kept[device] = [max(pair) for pair in zip(now, before, strict=True)]
        return rose

    def _step(self) -> None:
        self.steps += 1
        if self._update() or self.settled_after is None:
            self.settled_after = self.steps

    def _keep_on_reset(self) -> None:
        memory, cuda = self._torch.cuda.memory, self._torch.cuda
        reset: Callable[..., Any] = memory.reset_peak_memory_stats

        def keeping(*arguments: Any, **keywords: Any) -> Any:
            self._update()
            return reset(*arguments, **keywords)

        memory.reset_peak_memory_stats = cuda.reset_peak_memory_stats = keeping
