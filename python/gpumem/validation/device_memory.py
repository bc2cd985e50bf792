"""How much of the device this process takes, asked in the process on the device: virtual, NVML, or free memory."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch

from gpumem.validation import nvml
from gpumem.virtual.control import Control


class DeviceMemory(Protocol):
    """What the loop's measurement asks."""

    measured_by: str
    others_bytes: int

    def process_bytes(self) -> int:
        """Bytes that this process has of the device, its context included."""

    def guessed(self) -> tuple[str, ...]:
        """Sizes that were guessed so far."""

    def host_reads(self) -> int:
        """Reads that were answered with zeros so far."""


class VirtualMemory:
    """The virtual device's own account."""

    measured_by = "virtual device"
    others_bytes = 0

    def __init__(self, index: int) -> None:
        self._control = Control()
        self._index = index

    def process_bytes(self) -> int:
        """Bytes in use and the context's."""
        account = self._control.account(self._index)
        return account.used_bytes + account.context_bytes

    def guessed(self) -> tuple[str, ...]:
        """Calls that were answered with a guessed size."""
        return tuple(sorted(self._control.guessed()))

    def host_reads(self) -> int:
        """Reads so far."""
        return self._control.counts().host_reads


class RealMemory:
    """A real device: NVML's figure for this process, else what is taken now less what was taken before.

    Args:
        index: Number of the device for CUDA. CUDA must not be initialised yet: others' use is looked at here.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._nvml = nvml.find()
        self._before = self._nvml.used_by_bus() if self._nvml is not None else {}
        self.driver = self._nvml.driver() if self._nvml is not None else ""
        torch.cuda.init()
        torch.cuda.set_device(index)
        torch.cuda.synchronize()
        self._bus = _bus(index)
        self.others_bytes, self.measured_by = self._others()

    def _others(self) -> tuple[int, str]:
        before = self._before.get(self._bus, self._before.get(f"#{self._index}"))
        if self._nvml is None or before is None or not self._numbers_agree():
            return 0, "mem_get_info, difference"
        if self._nvml.used_by_this_process(self._bus) is not None:
            return before, "NVML, this process"
        return before, "NVML, difference"

    def _numbers_agree(self) -> bool:
        """Whether NVML's device is CUDA's, which `CUDA_VISIBLE_DEVICES` may number anew."""
        return self._bus in self._before or not os.environ.get("CUDA_VISIBLE_DEVICES")

    def process_bytes(self) -> int:
        """Bytes of this process, its context included."""
        own = self._nvml.used_by_this_process(self._bus) if self._nvml is not None else None
        if own is not None and self.measured_by == "NVML, this process":
            return own
        used = self._nvml.used(self._bus) if self._nvml is not None and self.measured_by == "NVML, difference" else None
        if used is None:
            free, total = torch.cuda.mem_get_info(self._index)
            used = total - free
        return max(0, used - self.others_bytes)

    def guessed(self) -> tuple[str, ...]:
        """None: a real device knows."""
        return ()

    def host_reads(self) -> int:
        """None: a real device answers with the values."""
        return 0


def device_memory(index: int, *, virtual: bool) -> tuple[VirtualMemory | RealMemory, str]:
    """The account of CUDA device `index`, which is initialised by it, and the driver's version."""
    if virtual:
        torch.cuda.init()
        torch.cuda.set_device(index)
        return VirtualMemory(index), ""
    real = RealMemory(index)
    return real, real.driver


def _bus(index: int) -> str:
    properties: Any = torch.cuda.get_device_properties(index)
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in numbers:
        return ""
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}"
