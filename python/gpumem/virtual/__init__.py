"""Unmodified CUDA PyTorch without a GPU: the user's program runs in a child process on a virtual CUDA device.

    run = gpumem.virtual.run(["train.py", "--epochs", "1"], gpu="rtx3090")
    run.devices[0].reserved_peak_bytes

PyTorch's own allocator, autograd engine and dispatcher run as they are; kernels do not, so numbers are zeros and memory
is exact. Linux (x86-64, aarch64) with a CUDA build of PyTorch; no GPU and no driver are needed, and none is used.
"""

from __future__ import annotations

from gpumem.virtual.launch import run
from gpumem.virtual.run_report import DeviceTotal, DeviceUse, HeldMemory, HostRead, ProcessUse, RunReport

__all__ = ["DeviceTotal", "DeviceUse", "HeldMemory", "HostRead", "ProcessUse", "RunReport", "run"]
