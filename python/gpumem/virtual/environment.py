"""The environment of a process on the virtual device: which card it is, and that it is found before the real libraries.

The library is preloaded (`LD_PRELOAD`) rather than opened by the child with `RTLD_GLOBAL`: both come before PyTorch's
libraries in the loader's order, but only the environment reaches processes that the program starts itself (`torchrun`,
spawned workers).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpumem._core import find_gpu
from gpumem.errors import VirtualDeviceError
from gpumem.virtual import installed, keeper

_NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""What programs open by name: the driver (PyTorch, Triton) and NVML (PyTorch, pynvml)."""

_REMOVED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""They number the machine's own devices."""

ADDRESS_ORDERS = ("up", "down", "random")

LEDGER = "GPUMEM_VGPU_LEDGER"
"""The variable that names the processes' common file (`gpumem.virtual.ledger`)."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What the process sees.

    Attributes:
        gpu: Name of the card.
        count: How many there are.
        total_bytes: Memory of each, context included; the card's when None.
        context_bytes: What the CUDA context takes of it; the likely value for the card when None.
        addresses: Where the driver puts segments: `up`, `down` or `random`, with or without a seed (`random7`).
        cudnn: `real` for the installed cuDNN's own answers about convolutions, `stub` for workspaces of zero bytes.
        trace: 1 writes failing calls to standard error, 2 all calls.
    """

    gpu: str
    count: int = 1
    total_bytes: int | None = None
    context_bytes: int | None = None
    addresses: str = "up"
    cudnn: str = "real"
    trace: int = 0

    def __post_init__(self) -> None:
        find_gpu(self.gpu)
        if not 1 <= self.count <= 16:
            raise VirtualDeviceError(f"{self.count} devices; from 1 to 16 are possible")
        order = self.addresses.rstrip("0123456789")
        if order not in ADDRESS_ORDERS or (order != "random" and order != self.addresses):
            raise VirtualDeviceError(f"address order {self.addresses!r} is none of {', '.join(ADDRESS_ORDERS)}")

    def variables(self, cuda: tuple[int, int]) -> dict[str, str]:
        """The library's environment variables (`rust/gpumem-vgpu/src/config.rs`) for a PyTorch built with `cuda`."""
        given = {
            "GPU": self.gpu,
            "DEVICES": self.count,
            "TOTAL_BYTES": self.total_bytes,
            "CONTEXT_BYTES": self.context_bytes,
            "ADDRESSES": self.addresses,
            "CUDNN": self.cudnn,
            "TRACE": self.trace,
            "CUDA_VERSION": cuda[0] * 1000 + cuda[1] * 10,
        }
        return {f"GPUMEM_VGPU_{name}": str(value) for name, value in given.items() if value is not None}


@contextlib.contextmanager
def environment(device: Device, base: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment for processes on `device`; usable until the block ends.

    The library's other names are links in a temporary folder, because a wheel cannot carry links. The file in which the
    processes write down what they use is there too: those of one environment share the memory of its devices. If this
    process is killed, theirs end with it and the folder goes.

    Args:
        device: What the processes see.
        base: The environment to add to.

    Raises:
        VirtualDeviceError: if the virtual device cannot be used here.
    """
    library, torch = installed.library(), installed.torch()
    # The keeper is told last, when the folder is gone.
    with contextlib.ExitStack() as keeping, tempfile.TemporaryDirectory(prefix="gpumem-vgpu-") as name:
        keeping.enter_context(_kept(name))
        folder = Path(name)
        for link in _NAMES:
            (folder / link).symlink_to(library)
        kept = {key: value for key, value in base.items() if key not in _REMOVED and not key.startswith("GPUMEM_VGPU_")}
        yield {
            **kept,
            **device.variables(torch.cuda),
            LEDGER: str(folder / "ledger"),
            "LD_PRELOAD": _joined(str(folder / _NAMES[0]), base.get("LD_PRELOAD")),
            "LD_LIBRARY_PATH": _joined(name, base.get("LD_LIBRARY_PATH")),
            # A thread of the autograd engine that sleeps since Python's end (thread_exit.rs) is not waited for long.
            "TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT": base.get("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "1"),
            # Triton compiles a helper that it links with the driver.
            "TRITON_LIBCUDA_PATH": name,
        }


@contextlib.contextmanager
def _kept(folder: str) -> Iterator[None]:
    """If this process is killed before the block ends, have those in `folder`'s environment ended, and it removed."""
    command = [sys.executable, "-I", "-S", keeper.__file__, folder]
    # A session of its own, so that Ctrl-C does not reach it.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ):
        yield


def _joined(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first
