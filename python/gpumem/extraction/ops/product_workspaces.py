"""What cuBLAS and cuBLASLt work in, inside PyTorch's counters."""

from __future__ import annotations

from gpumem.extraction.installed import LtBuffer, cublas_workspace_is_kept, lt_buffer
from gpumem.extraction.recorder import Recorder, Temporaries

# What `CUBLASLT_WORKSPACE_SIZE` is where it is not set (facts/workspaces.md section 2).
_LT_BUFFER_BYTES = 1 << 20


def cublas_call(rec: Recorder) -> None:
    """A cuBLAS handle's workspace: kept from the first call of the forward and of the autograd thread on."""
    if cublas_workspace_is_kept():
        rec.kept_workspace("cublas_workspace", [int(rec.in_backward)])
    else:
        rec.scratch("cublas_workspace_of_a_call", [])


def cublas_lt_call(rec: Recorder, tmp: Temporaries) -> None:
    """What cuBLASLt works in: cuBLAS's workspace, a buffer of its own, or both."""
    buffer = lt_buffer()
    if buffer is LtBuffer.OF_A_CALL:
        tmp.alloc(_LT_BUFFER_BYTES)
    if cublas_workspace_is_kept():
        cublas_call(rec)
    if buffer is LtBuffer.KEPT:
        rec.kept_workspace("cublas_workspace", [int(rec.in_backward), _LT_BUFFER_BYTES])
