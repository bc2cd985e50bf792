"""Where the installed cuDNN is, and which PyTorch it came with; nothing is loaded or imported."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpumem.errors import CudnnError, VirtualDeviceError
from gpumem.virtual import installed
from gpumem.virtual.installed import InstalledTorch

_NAME = "libcudnn.so.9"
_WHEEL = Path("nvidia", "cudnn", "lib")
_CUDA_WITHOUT_TORCH = (13, 0)
_HINT = "conv_workspaces='auto' takes the fitted rules where cuDNN cannot be asked"

Version = tuple[int, int]


@dataclass(frozen=True)
class InstalledCudnn:
    """A cuDNN that can be asked.

    Attributes:
        library: Its `libcudnn.so.9`.
        device: gpumem's library of the virtual device, which asks it.
        torch: The PyTorch that it came with, or None without one.
        before: Libraries that a program with PyTorch has loaded: NVRTC, without which cuDNN leaves out the engines that
            it compiles at run time.
    """

    library: Path
    device: Path
    torch: InstalledTorch | None
    before: tuple[Path, ...] = ()

    @property
    def cuda(self) -> Version:
        """CUDA version to tell cuDNN."""
        return _CUDA_WITHOUT_TORCH if self.torch is None else self.torch.cuda

    def check_stack(self, stack: tuple[Version, Version | None] | None) -> None:
        """Its answers are for programs with the installed PyTorch.

        Raises:
            CudnnError: the target's stack is another one.
        """
        if stack is None:
            return
        torch, cuda = stack
        if self.torch is None:
            raise CudnnError("it is not known whether the installed cuDNN is that of the target's PyTorch", _HINT)
        if self.torch.numbers != torch or cuda not in (None, self.torch.cuda):
            raise CudnnError(
                f"the installed cuDNN is that of PyTorch {self.torch.version}, and the target has another", _HINT
            )


@functools.lru_cache(maxsize=1)
def _found() -> InstalledCudnn | CudnnError:
    try:
        device = installed.library()
    except VirtualDeviceError as error:
        return CudnnError(f"cuDNN cannot be asked here: {error.message}", _HINT)
    try:
        torch = installed.torch()
    except VirtualDeviceError:
        # Without CUDA: whatever cuDNN is there did not come with it.
        torch = None
    for folder in _folders(torch):
        if (folder / _NAME).is_file():
            return InstalledCudnn(folder / _NAME, device, torch, _nvrtc(folder, torch))
    return CudnnError("cuDNN 9 is not installed", "a CUDA build of PyTorch brings it; " + _HINT)


def installed_cudnn() -> InstalledCudnn:
    """The cuDNN that PyTorch would load here; looked for once.

    Raises:
        CudnnError: there is none, or this platform has no virtual device to ask it with.
    """
    found = _found()
    if isinstance(found, CudnnError):
        raise found
    return found


def _nvrtc(cudnn: Path, torch: InstalledTorch | None) -> tuple[Path, ...]:
    """NVRTC beside this cuDNN: in the wheels of CUDA 12 and 13, or in the same folder."""
    name = f"libnvrtc.so.{'*' if torch is None else torch.cuda[0]}"
    nvidia = cudnn.parent.parent
    found = [*sorted(nvidia.glob(f"cu*/lib/{name}")), *sorted(cudnn.glob(name))]
    return tuple(found[:1])


def _folders(torch: InstalledTorch | None) -> Iterator[Path]:
    """Where PyTorch's libraries look for it (their run paths), then where its wheel lies without PyTorch."""
    if torch is not None:
        yield torch.folder.parent / _WHEEL
        yield torch.folder / "lib"
        yield Path(sys.prefix) / "lib"
        return
    nvidia = importlib.util.find_spec("nvidia")
    for folder in nvidia.submodule_search_locations or () if nvidia is not None else ():
        yield Path(folder).parent / _WHEEL
