"""Whether the virtual device can be used here: the platform, the PyTorch, and the library itself."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from gpumem.errors import VirtualDeviceError

LIBRARY = Path(__file__).parent / "lib" / "libgpumem_vgpu.so"
"""Built by `rust/gpumem-py/build.rs` and shipped in the wheel."""

MACHINES = ("x86_64", "aarch64")
OLDEST_TORCH, NEWEST_TORCH = (2, 4), (2, 15)
"""Versions that the device was tried with (`tools/check_virtual_versions.py`)."""

CUDA_RELEASES = (12, 13)
"""Major versions of CUDA whose libraries the device stands in for."""

ANY_TORCH = "GPUMEM_ANY_TORCH"
"""Environment variable: `1` tries a PyTorch or CUDA of another version too."""

_TORCH_HINT = "pip install torch from an index with CUDA builds; a driver or a GPU is not needed"
_ANY_HINT = (
    f"{ANY_TORCH}=1 tries it all the same; `python -m gpumem.virtual.symbols` names the entry points it would miss"
)
_VERSION = re.compile(r"^__version__ = '([^']+)'", re.MULTILINE)
_CUDA = re.compile(r"^cuda(?:: *[^=]+)? = '([0-9.]+)'", re.MULTILINE)
_HIP = re.compile(r"^hip(?:: *[^=]+)? = '([^']+)'", re.MULTILINE)


@dataclass(frozen=True)
class InstalledTorch:
    """The PyTorch that a child process would import.

    Attributes:
        version: Such as `2.14.1+cu130`.
        cuda: Version of CUDA it was built with, `(13, 0)`.
        folder: Its package folder.
    """

    version: str
    cuda: tuple[int, int]
    folder: Path

    @property
    def numbers(self) -> tuple[int, int]:
        """Major and minor version."""
        return _numbers(self.version)


def library() -> Path:
    """The device's library.

    Raises:
        VirtualDeviceError: on a platform it does not exist for, or when this installation was built without it.
    """
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise VirtualDeviceError(
            f"the virtual GPU exists for Linux on {' and '.join(MACHINES)}, not for {sys.platform} on "
            f"{platform.machine()}",
            "`gpumem estimate` and `gpumem max-batch` work everywhere",
        )
    if not LIBRARY.exists():
        raise VirtualDeviceError(
            "this installation of gpumem was built without the virtual GPU", "install a wheel, or run `make setup`"
        )
    return LIBRARY


def torch(*, any_version: bool = False) -> InstalledTorch:
    """The installed PyTorch, looked at without importing it.

    Args:
        any_version: Also one that the device was never tried with.

    Raises:
        VirtualDeviceError: if there is none, it was built without CUDA, or its version is unknown and neither
            `any_version` nor the environment variable `GPUMEM_ANY_TORCH` allows that.
    """
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        # Something in this process keeps it from being imported.
        found = None
    if found is None or found.origin is None:
        raise VirtualDeviceError("PyTorch is not installed", _TORCH_HINT)
    folder = Path(found.origin).parent
    file = folder / "version.py"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    version, cuda, hip = _VERSION.search(text), _CUDA.search(text), _HIP.search(text)
    if version is None:
        raise VirtualDeviceError(f"{file} does not say which PyTorch it is")
    if hip is not None:
        raise VirtualDeviceError(f"PyTorch {version[1]} was built for ROCm {hip[1]}, not for CUDA", _TORCH_HINT)
    if cuda is None:
        raise VirtualDeviceError(f"PyTorch {version[1]} was built without CUDA", _TORCH_HINT)
    installed = InstalledTorch(version[1], _numbers(cuda[1]), folder)
    if not any_version and os.environ.get(ANY_TORCH) != "1":
        _check_versions(installed)
    return installed


def _check_versions(installed: InstalledTorch) -> None:
    number = _numbers(installed.version)
    if number < OLDEST_TORCH:
        raise VirtualDeviceError(
            f"PyTorch {installed.version} is older than {_text(OLDEST_TORCH)}, the oldest that the virtual GPU knows",
            _ANY_HINT,
        )
    if number > NEWEST_TORCH:
        raise VirtualDeviceError(
            f"PyTorch {installed.version} is newer than {_text(NEWEST_TORCH)}, the newest that the virtual GPU was "
            "tried with",
            _ANY_HINT,
        )
    if installed.cuda[0] not in CUDA_RELEASES:
        known = " and ".join(map(str, CUDA_RELEASES))
        raise VirtualDeviceError(
            f"PyTorch {installed.version} was built with CUDA {_text(installed.cuda)}; the virtual GPU stands in for "
            f"the libraries of CUDA {known}",
            _ANY_HINT,
        )


def _text(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))


def _numbers(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)
