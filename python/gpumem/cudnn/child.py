"""The process that holds cuDNN: one question per line of standard input, one answer per line of standard output.

    python -I -S child.py GPUMEM_LIBRARY CUDNN [LIBRARY_BEFORE_IT ...]

It imports nothing but the standard library, so that it starts in milliseconds. gpumem's library comes first: under its
name (`libcuda.so.1`) cuDNN's own runtime finds it instead of a driver, and is told that there is no device, as on the
virtual GPU. So no real GPU is touched, and the answers are about the named card only.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys

IDLE_SECONDS = 60.0
"""Without a question for so long it ends; the next question starts another."""

NO_PLAN = "none"
FAILED = "failed"


def _libraries(device: str, cudnn: str, before: list[str]) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    gpumem = ctypes.CDLL(device)
    for path in before:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    return gpumem, ctypes.CDLL(cudnn, mode=ctypes.RTLD_GLOBAL)


def _answer(gpumem: ctypes.CDLL, line: str) -> str:
    """`CARD CUDA_VERSION INTEGER ...` to workspace bytes, `none`, or `failed` and a status."""
    gpu, cuda, *integers = line.split()
    values = (ctypes.c_int64 * len(integers))(*map(int, integers))
    found = ctypes.c_int64(-1)
    status = gpumem.gpumem_vgpu_conv_workspace(
        gpu.encode(), ctypes.c_int(int(cuda)), values, ctypes.c_uint64(len(integers)), ctypes.byref(found)
    )
    if status:
        return f"{FAILED} {status}"
    return NO_PLAN if found.value < 0 else str(found.value)


def main() -> int:
    """Answer until standard input ends or nothing is asked for a while."""
    # What libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    device, cudnn, *before = sys.argv[1:]
    try:
        gpumem, library = _libraries(device, cudnn, before)
        version = int(library.cudnnGetVersion())
    except (OSError, AttributeError) as error:
        print(FAILED, error, file=answers)
        return 1
    print("cudnn", version, file=answers)
    questions = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    pending = b""
    while select.select([questions], [], [], IDLE_SECONDS)[0]:
        read = os.read(0, 1 << 16)
        if not read:
            break
        *lines, pending = (pending + read).split(b"\n")
        for line in lines:
            print(_answer(gpumem, line.decode()), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
