"""The library's own questions and answers (`rust/gpumem-vgpu/src/control.rs`), in the process that it is loaded in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

READ_HOOK = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
_TEXT_ROOM = 1 << 16


@dataclass(frozen=True)
class Account:
    """Memory of one device, in bytes: in use, most in use, the context's, in all; and how often it was not enough."""

    used_bytes: int
    peak_bytes: int
    context_bytes: int
    total_bytes: int
    refusals: int


@dataclass(frozen=True)
class Counts:
    """Kernels asked for, and reads from devices."""

    launches: int
    host_reads: int


class Control:
    """The preloaded library.

    Raises:
        RuntimeError: if it is not loaded in this process.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        if not hasattr(self._library, "gpumem_vgpu_device"):
            raise RuntimeError("the virtual device is not loaded in this process")
        self._hook = READ_HOOK(0)

    def device_count(self) -> int:
        """How many devices there are."""
        count = ctypes.c_int()
        self._call("gpumem_vgpu_device_count", ctypes.byref(count))
        return count.value

    def number(self, device: int) -> int | None:
        """What the program calls a device; None if it does not see it."""
        number = ctypes.c_int()
        self._call("gpumem_vgpu_number", ctypes.c_int(device), ctypes.byref(number))
        return None if number.value < 0 else number.value

    def account(self, device: int) -> Account:
        """Memory of a device, as far as this process uses it."""
        values = (ctypes.c_uint64 * 5)()
        self._call("gpumem_vgpu_device", ctypes.c_int(device), values)
        return Account(*values)

    def counts(self) -> Counts:
        """What was counted so far."""
        values = (ctypes.c_uint64 * 2)()
        self._call("gpumem_vgpu_counts", values)
        return Counts(*values)

    def unsupported(self) -> dict[str, int]:
        """Refused calls with how often."""
        return self._tally("gpumem_vgpu_unsupported")

    def guessed(self) -> dict[str, int]:
        """Calls answered with a size that is a guess, with how often."""
        return self._tally("gpumem_vgpu_guessed")

    def cudnn(self) -> str:
        """Who answered about convolutions: `real`, `stub`, or an empty string."""
        who = ctypes.c_int()
        self._call("gpumem_vgpu_cudnn", ctypes.byref(who))
        return ("", "real", "stub")[who.value]

    def _tally(self, name: str) -> dict[str, int]:
        room = ctypes.create_string_buffer(_TEXT_ROOM)
        self._call(name, room, ctypes.c_uint64(_TEXT_ROOM))
        lines = (line.rsplit(" ", 1) for line in room.value.decode().splitlines())
        return {symbol: int(count) for symbol, count in lines}

    def on_read(self, function: Callable[[int], None] | None) -> None:
        """Call `function` with the number of bytes whenever the host reads from a device; None to stop."""
        hook = READ_HOOK(0) if function is None else READ_HOOK(function)
        self._call("gpumem_vgpu_on_read", hook)
        # The library calls it until the next one is set.
        self._hook = hook

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} answered {status}")
