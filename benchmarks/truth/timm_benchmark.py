"""timm's training benchmark of July 2022 on an RTX 3090, as a loop that gpumem traces.

What it does is listed in shared/truth/README.md ("The brackets' recipe"); torch 1.12.1, CUDA 11.3, cuDNN 8.
"""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.truth.rows import Row
from torch import nn
from torch.nn import functional

from gpumem import api
from gpumem._core import ModelSpec
from gpumem.errors import BatchDependentError

GPU = "rtx3090"
STACK = "torch-1.12+cu113"
# For-loop implementation: torch 1.12 has no foreach default.
OPTIMIZER = ("sgd", {"lr": 1e-4, "momentum": 0.9, "nesterov": True, "foreach": False})


class BenchmarkStep:
    """The benchmark's step: images made once and kept, a new target every step, backward inside autocast.

    The traced batch only carries the batch size (4 bytes per sample), since the benchmark has no data loader.
    """

    def __init__(self, image_size: int, classes: int, *, channels_last: bool) -> None:
        self._image_size = image_size
        self._classes = classes
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self._images: torch.Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The images of a trace do not travel to a device.
        return {**vars(self), "_images": None}

    def _resident_images(self, batch: torch.Tensor) -> torch.Tensor:
        # One instance serves the traces of several batch sizes, one after the other.
        if self._images is None or self._images.shape[0] != batch.shape[0]:
            size = self._image_size
            images = torch.randn((batch.shape[0], 3, size, size), device=batch.device)
            self._images = images.contiguous(memory_format=self._layout)
        return self._images

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
        """One step."""
        images = self._resident_images(batch)
        # torch 1.12 keeps the gradient tensors.
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(images)
            output = output[0] if isinstance(output, tuple) else output
            target = torch.empty(output.shape[0], dtype=torch.long, device=output.device).random_(self._classes)
            functional.cross_entropy(output, target).backward()
        optimizer.step()


def build(row: Row) -> nn.Module:
    """The model of a row, without weights; attention is not fused, since torch 1.12 cannot."""
    import timm
    from timm.layers import set_fused_attn, use_fused_attn

    fused = use_fused_attn()
    set_fused_attn(False)
    try:
        with torch.device("meta"):
            model: nn.Module = timm.create_model(row["timm_now"] or row["model"], drop_rate=0.0)
    finally:
        set_fused_attn(fused)
    return model


def trace(row: Row) -> ModelSpec:
    """Trace the benchmark's loop for the model of a row.

    Two batch sizes make every size a line; where they do not agree, `extract` takes its own and checks them.
    """
    torch.set_num_threads(1)
    model = build(row)
    try:
        return api.extract(model, (1,), step=step_of(row, model), batches=(2, 3), gpu=GPU, **keywords(row))
    except BatchDependentError:
        return api.extract(model, (1,), step=step_of(row, model), gpu=GPU, **keywords(row))


def step_of(row: Row, model: nn.Module) -> BenchmarkStep:
    """The benchmark's step for a row's model."""
    classes = getattr(model, "num_classes")  # noqa: B009 - timm's, not nn.Module's
    return BenchmarkStep(int(row["img_size"]), classes, channels_last=row["layout"] == "nhwc")


def keywords(row: Row) -> dict[str, Any]:
    """Further keywords of `gpumem.extract`."""
    return {"optimizer": OPTIMIZER, "channels_last": row["layout"] == "nhwc", "host_reads": "zeros"}
