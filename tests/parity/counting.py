"""A virtual GPU that says how many elements of a mask are set: `counting.c`, loaded before the device."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gpumem.errors import VirtualDeviceError

_SOURCE = Path(__file__).with_suffix(".c")


def counting(variables: Mapping[str, str], count: int, folder: Path) -> dict[str, str]:
    """`variables` of processes on the virtual GPU, to which it answers `count` where they read one 32-bit number.

    Args:
        variables: What `gpumem.virtual.environment` gives.
        count: The answer.
        folder: Where the library is built.

    Raises:
        VirtualDeviceError: if there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise VirtualDeviceError("a device that counts set elements is built with a C compiler, and there is none")
    folder.mkdir(parents=True, exist_ok=True)
    library, partial = folder / "counting.so", folder / f"counting.{os.getpid()}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", partial, _SOURCE, "-ldl"], check=True)
    partial.replace(library)
    return {
        **variables,
        "LD_PRELOAD": f"{library}:{variables['LD_PRELOAD']}",
        "GPUMEM_TEST_COUNT": str(count),
    }
