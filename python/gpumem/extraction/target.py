"""The GPU facts that decide which kernels run, and so which tensors exist; everything else is the core's business."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelTarget:
    """What kernel choices depend on.

    Attributes:
        capability: Compute capability, for attention backends and bf16 support.
        cudnn_rnn: Whether LSTM, GRU and RNN use cuDNN.
        gpu: Name of the card that `torch.cuda.get_device_properties()` describes.
    """

    capability: tuple[int, int] = (8, 6)
    cudnn_rnn: bool = True
    gpu: str = "rtx3090"


_current = KernelTarget()


def current_target() -> KernelTarget:
    """The target of the trace that is running."""
    return _current


@contextlib.contextmanager
def targeting(target: KernelTarget) -> Iterator[None]:
    """Make `target` the current one (traces run one at a time)."""
    global _current  # noqa: PLW0603
    before, _current = _current, target
    try:
        yield
    finally:
        _current = before
