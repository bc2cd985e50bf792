"""What NVML says about a device: memory of all processes and of one, before and beside CUDA. Through ctypes.

No Python binding is needed, and none of its versions: the functions have been the same for many drivers.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_SUCCESS = 0
_TEXT = 96
_PROCESSES = 256
# NVML has no figure for a process (inside of some containers and under WDDM).
_NOT_AVAILABLE = (1 << 64) - 1


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """The machine's NVML.

    Raises:
        OSError: there is none, or it does not start.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)
        if self._call("nvmlInit_v2") is None:
            raise OSError("NVML does not start")

    def driver(self) -> str:
        """Version of the driver, or an empty string."""
        text = ctypes.create_string_buffer(_TEXT)
        done = self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(_TEXT))
        return "" if done is None else text.value.decode()

    def used_by_bus(self) -> dict[str, int]:
        """PCI bus of every device (lower case, `0000:3b:00`) to the bytes that all processes have of it."""
        count = ctypes.c_uint()
        if self._call("nvmlDeviceGetCount_v2", ctypes.byref(count)) is None:
            return {}
        found = {}
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)) is None:
                continue
            used, bus = self._used(handle), self._bus(handle)
            if used is not None:
                found[bus or f"#{index}"] = used
        return found

    def used(self, bus: str) -> int | None:
        """Bytes that all processes have of the device on this bus."""
        handle = self._handle(bus)
        return None if handle is None else self._used(handle)

    def used_by_this_process(self, bus: str) -> int | None:
        """Bytes of this process on the device, its context included; None where NVML does not see it."""
        handle = self._handle(bus)
        if handle is None:
            return None
        count, rows = ctypes.c_uint(_PROCESSES), (_Process * _PROCESSES)()
        if self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), rows) is None:
            return None
        mine = [row.used for row in rows[: count.value] if row.pid == os.getpid() and row.used != _NOT_AVAILABLE]
        return int(mine[0]) if mine else None

    def _handle(self, bus: str) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        found = self._call("nvmlDeviceGetHandleByPciBusId_v2", f"{bus}.0".encode(), ctypes.byref(handle))
        return None if found is None else handle

    def _used(self, handle: ctypes.c_void_p) -> int | None:
        memory = _Memory()
        done = self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return None if done is None else int(memory.used)

    def _bus(self, handle: ctypes.c_void_p) -> str:
        # nvmlPciInfo_t begins with the old 16-character form; the long one is its last text of 32.
        info = ctypes.create_string_buffer(128)
        if self._call("nvmlDeviceGetPciInfo_v3", handle, info) is None:
            return ""
        return info.raw[:16].split(b"\0")[0].decode().lower().rpartition(".")[0]

    def _call(self, name: str, *arguments: Any) -> bool | None:
        """True for a call that succeeded; None for one that failed or that this driver lacks."""
        function = getattr(self._library, name, None)
        if function is None:
            return None
        function.restype = ctypes.c_int
        return True if function(*arguments) == _SUCCESS else None


def find() -> Nvml | None:
    """NVML, or None where there is none."""
    try:
        return Nvml()
    except OSError:
        return None
