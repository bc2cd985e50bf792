"""Calls entry points with odd arguments, from several threads at a time; says last how many calls there were.

Arguments: a file with the signatures (tests/virtual/entry_signatures.py) as JSON, the seed, rounds, threads, and
cuDNN's library to load before, or an empty string. Before each call its thread writes the call down, so that after a
crash it is known. An address is null or good, since a library can do nothing about others; all else is anything.
"""

import ctypes
import json
import random
import sys
import threading
from pathlib import Path
from typing import TextIO

ODD = [0, 1, 2, 3, 7, 64, -1, -7, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63)]
COPIED = {"destination", "source"}
PLACES = {"value"}
BUFFER_BYTES = 32 << 20
KEPT = 64


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32)]


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 128)]


class SharedHandle(ctypes.Structure):
    _fields_ = [(f"word{index}", ctypes.c_uint64) for index in range(8)]


class Caller:
    """One thread's calls."""

    def __init__(self, functions: dict[str, list[list[str]]], seed: int) -> None:
        self.functions, self.random = functions, random.Random(seed)
        self.buffer = ctypes.create_string_buffer(BUFFER_BYTES)
        # What calls wrote: handles and addresses, those in use and those that were freed.
        self.seen: list[int] = [0]
        self.calls = 0

    def work(self, rounds: int, log: Path) -> None:
        names = sorted(self.functions)
        with log.open("w", buffering=1) as file:
            for _ in range(rounds):
                self.random.shuffle(names)
                for name in names:
                    self.call(name, file)

    def call(self, name: str, file: TextIO) -> None:
        arguments = [self.argument(*parameter) for parameter in self.functions[name]]
        file.write(f"{name} {[getattr(it, 'value', it) for it in arguments]}\n")
        function = getattr(library, name)
        function.restype = ctypes.c_int
        function(*arguments)
        self.calls += 1
        self.seen = [*self.seen[-KEPT:], int.from_bytes(ctypes.string_at(self.buffer, 8), sys.byteorder)]
        # Text and descriptors that are read stay as programs hand them over: ended, and null.
        ctypes.memset(self.buffer, 0, 4096)

    def argument(self, name: str, kind: str) -> object:
        if kind.startswith(("Out", "In<", "InOut<", "Text", "*")) or name.strip("_") in PLACES:
            return ctypes.c_void_p(self.random.choice([None, ctypes.addressof(self.buffer)]))
        if kind == "Dim3":
            return Dim3(*(self.random.choice(ODD) for _ in range(3)))
        if kind == "UniqueId":
            return UniqueId()
        if kind == "SharedHandle":
            return SharedHandle(self.random.choice([0, *self.seen]), *self.random.choices(ODD, k=7))
        if kind.startswith("Option"):
            return ctypes.c_void_p(None)
        if name in COPIED:
            return ctypes.c_uint64(self.random.choice([0, *addresses]))
        anything = [*ODD, self.random.choice(addresses), *self.random.choices(self.seen, k=4)]
        return ctypes.c_uint64(self.random.choice(anything) & (1 << 64) - 1)


def device_addresses() -> list[int]:
    """One in use, one freed, one in the middle."""
    taken = [ctypes.c_uint64() for _ in range(2)]
    for place in taken:
        library.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(4 << 20))
    library.cudaFree(taken[1])
    return [taken[0].value, taken[1].value, taken[0].value + 12345]


file, seed, rounds, threads, cudnn = sys.argv[1:]
if cudnn:
    ctypes.CDLL(cudnn)
library = ctypes.CDLL(None)
addresses = device_addresses()
callers = [Caller(json.loads(Path(file).read_text()), int(seed) + index) for index in range(int(threads))]
running = [
    threading.Thread(target=caller.work, args=(int(rounds), Path(f"{file}.{index}")))
    for index, caller in enumerate(callers)
]
for thread in running:
    thread.start()
for thread in running:
    thread.join()
place = ctypes.c_uint64()
assert library.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(1)) in (0, 2)
print(sum(caller.calls for caller in callers))
