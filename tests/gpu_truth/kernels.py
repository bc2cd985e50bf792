"""What a fresh process takes of the device as it uses one kind of kernel after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpumem.validation import nvml
from gpumem.validation.device_memory import device_memory
from gpumem.validation.measured_loop import clean, requests


def _backward(output: torch.Tensor) -> None:
    output.float().sum().backward()


def _ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, device="cuda", dtype=dtype, requires_grad=dtype.is_floating_point)


def _attention(backend: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = _ones(4, 8, 256, 64, dtype=torch.float16)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        _backward(functional.scaled_dot_product_attention(q, q, q))


def _optimizer(**more: Any) -> None:
    weight = nn.Parameter(torch.ones(64, 64, device="cuda"))
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], **more).step()


def _convolution(dtype: torch.dtype, layout: torch.memory_format) -> None:
    layer = nn.Conv2d(64, 64, 3, padding=1, device="cuda", dtype=dtype).to(memory_format=layout)
    _backward(layer(_ones(8, 64, 56, 56, dtype=dtype).contiguous(memory_format=layout)))


KERNELS: dict[str, Callable[[], Any]] = {
    "first tensor": lambda: torch.zeros(1, device="cuda"),
    "elementwise": lambda: (_ones(1000) + 1).relu_(),
    "reduction": lambda: _ones(1000, 1000).sum(1).mean(),
    "softmax, loss": lambda: _backward(
        functional.cross_entropy(_ones(64, 1000), torch.zeros(64, device="cuda").long())
    ),
    "cuBLAS fp32": lambda: _backward(_ones(256, 256) @ _ones(256, 256)),
    "cuBLAS bf16": lambda: _backward(_ones(256, 256, dtype=torch.bfloat16) @ _ones(256, 256, dtype=torch.bfloat16)),
    "cuBLASLt fp16": lambda: _backward(
        nn.Linear(256, 256, device="cuda", dtype=torch.float16)(_ones(64, 256, dtype=torch.float16))
    ),
    "batched matmul": lambda: _backward(torch.bmm(_ones(8, 64, 64), _ones(8, 64, 64))),
    "norms": lambda: _backward(nn.BatchNorm2d(8, device="cuda")(nn.GroupNorm(2, 8, device="cuda")(_ones(4, 8, 9, 9)))),
    "dropout": lambda: _backward(functional.dropout(_ones(1000))),
    "optimizer, foreach": lambda: _optimizer(foreach=True),
    "optimizer, fused": lambda: _optimizer(fused=True),
    "cuDNN convolution fp32": lambda: _convolution(torch.float32, torch.contiguous_format),
    "cuDNN convolution fp16 channels_last": lambda: _convolution(torch.float16, torch.channels_last),
    "cuDNN LSTM": lambda: _backward(nn.LSTM(64, 64, device="cuda")(_ones(16, 4, 64))[0]),
    "attention, flash": lambda: _attention("FLASH_ATTENTION"),
    "attention, memory-efficient": lambda: _attention("EFFICIENT_ATTENTION"),
    "attention, cuDNN": lambda: _attention("CUDNN_ATTENTION"),
    "sort": lambda: _ones(100_000).sort(),
    "embedding backward": lambda: _backward(nn.Embedding(100, 64, device="cuda")(torch.zeros(8, device="cuda").long())),
    "cuSOLVER": lambda: torch.linalg.cholesky(torch.eye(64, device="cuda")),
    "cuFFT": lambda: torch.fft.fft(_ones(1024)),
    "cuSPARSE": lambda: torch.eye(64, device="cuda").to_sparse_csr() @ torch.ones(64, 64, device="cuda"),
}
"""In this order: what nearly every training uses comes first."""


def context_steps(virtual: bool) -> list[dict[str, Any]]:
    """Run them all, once each.

    Returns:
        One row per kind: `outside_bytes` (of this process outside PyTorch's segments, with an empty cache), what NVML
        and CUDA say of the whole device, and `requests`, the sizes that PyTorch's allocator was asked for.
    """
    memory, _ = device_memory(0, virtual=virtual)
    library = nvml.find()
    rows = [_row("initialised", memory, library)]
    for name, run in KERNELS.items():
        torch.cuda.memory._record_memory_history(
            "all", context=None, stacks="python", max_entries=10_000, clear_history=True
        )
        error = ""
        try:
            run()
            torch.cuda.synchronize()
        except Exception as raised:
            error = f"{type(raised).__name__}: {str(raised)[:300]}"
        sizes = requests(torch.cuda.memory._snapshot())
        torch.cuda.memory._record_memory_history(None)
        clean()
        rows.append({**_row(name, memory, library), "requests": sizes, **({"error": error} if error else {})})
    return rows


def _row(name: str, memory: Any, library: nvml.Nvml | None) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info()
    return {
        "after": name,
        "outside_bytes": memory.process_bytes() - torch.cuda.memory_reserved(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "cuda_used_bytes": total - free,
        "nvml_used_bytes": None if library is None else sorted(library.used_by_bus().values()),
    }
