"""Whether the virtual device can be used here: the platform, the PyTorch, and the library itself."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from gpumem.errors import VirtualDeviceError

LIBRARY = Path(__file__).parent / "lib" / "libgpumem_vgpu.so"
"""Built by `rust/gpumem-py/build.rs` and shipped in the wheel."""

MACHINES = ("x86_64", "aarch64")
OLDEST_TORCH = (2, 4)
"""The oldest version the device was tried with; `symbols` names what another one would miss."""

_TORCH_HINT = "pip install torch from an index with CUDA builds; a driver or a GPU is not needed"
_VERSION = re.compile(r"^__version__ = '([^']+)'", re.MULTILINE)
_CUDA = re.compile(r"^cuda(?:: *[^=]+)? = '([0-9.]+)'", re.MULTILINE)


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


def torch() -> InstalledTorch:
    """The installed PyTorch, looked at without importing it.

    Raises:
        VirtualDeviceError: if there is none, or it was built without CUDA or is too old.
    """
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        # Something in this process keeps it from being imported.
        found = None
    if found is None or found.origin is None:
        raise VirtualDeviceError("PyTorch is not installed", _TORCH_HINT)
    folder = Path(found.origin).parent
    text = (folder / "version.py").read_text(encoding="utf-8")
    version, cuda = _VERSION.search(text), _CUDA.search(text)
    if version is None:
        raise VirtualDeviceError(f"{folder / 'version.py'} does not say which PyTorch it is")
    if cuda is None:
        raise VirtualDeviceError(f"PyTorch {version[1]} was built without CUDA", _TORCH_HINT)
    if _numbers(version[1]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise VirtualDeviceError(f"PyTorch {version[1]} is older than {oldest}, the oldest the virtual GPU knows")
    return InstalledTorch(version[1], _numbers(cuda[1]), folder)


def _numbers(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)
