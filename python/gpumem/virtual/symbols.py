"""`python -m gpumem.virtual.symbols`: CUDA entry points that the installed PyTorch needs and the device does not have.

They are answered by the real libraries, which find no driver; a program that reaches one fails or crashes there. A line
in `rust/gpumem-vgpu/data` gives an entry point a default behaviour. Functions of the driver that the allocator looks up
by name while it runs are in no symbol table; they are found among the strings of `libc10_cuda.so`, because older
versions stop when one of them does not exist. `gpumem run --trace 1` names what other libraries look up.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from gpumem.errors import GpumemError
from gpumem.virtual import installed
from gpumem.virtual.elf import dynamic_symbols

_CUDA = re.compile(
    r"(__cuda|cuda|cu|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvml)[A-Z]\w*"
)
"""Libraries that talk to a device. NVRTC, nvJitLink, CUPTI, NVTX and NVSHMEM are left to the real ones."""

_FILE_IO = re.compile(r"cuFile[A-Z]\w*")
"""GPUDirect Storage: reads files into device memory, which nothing does here."""

_LOOKED_UP = re.compile(rb"\0((?:cu|nvml)[A-Z]\w+)(?=\0)")
_LOOKING_UP = "libc10_cuda.so"

_COMPANIONS = ("torchvision", "torchaudio")
_TEXT_ROOM = 1 << 16


def missing(libraries: Iterable[Path]) -> dict[str, list[str]]:
    """Symbols that the libraries need and nothing of the device provides, with the names of those that need them."""
    device = installed.library()
    known = dynamic_symbols(device).provided | _left_to_real(device)
    found: dict[str, list[str]] = {}
    for library in libraries:
        needed = dynamic_symbols(library).needed
        if library.name == _LOOKING_UP:
            needed |= {name.decode() for name in _LOOKED_UP.findall(library.read_bytes())}
        for symbol in needed - known:
            if _CUDA.fullmatch(symbol) and not _FILE_IO.fullmatch(symbol):
                found.setdefault(symbol, []).append(library.name)
    return {symbol: sorted(found[symbol]) for symbol in sorted(found)}


def libraries_of(torch: Path) -> list[Path]:
    """The shared libraries of PyTorch and of the packages beside it that have kernels of their own."""
    folders = [torch / "lib", *(torch.parent / name for name in _COMPANIONS)]
    return sorted(file for folder in folders if folder.is_dir() for file in folder.glob("*.so"))


def _left_to_real(device: Path) -> set[str]:
    """Functions that need no device, such as `cudnnGetVersion`."""
    room = ctypes.create_string_buffer(_TEXT_ROOM)
    if ctypes.CDLL(str(device)).gpumem_vgpu_left_to_real(room, ctypes.c_uint64(_TEXT_ROOM)) != 0:
        raise RuntimeError("the device does not say what it leaves to the real libraries")
    return set(room.value.decode().split())


def main() -> int:
    """Print the symbols, one a line with who needs it; exit code 1 if there are any, 2 on an error."""
    try:
        torch = installed.torch(any_version=True)
        found = missing(libraries_of(torch.folder))
    except GpumemError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for symbol, users in found.items():
        print(symbol, *users)
    print(f"torch {torch.version}: {len(found)} entry points are not provided", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
