"""The state of the thread that calls `extract` changes neither the answer nor is it changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gpumem.api import extract
from tests.extract import models


@contextlib.contextmanager
def _default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def _nested_autocast() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        yield


CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast on the CPU": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "nested autocast": _nested_autocast,
    "torch.device meta": lambda: torch.device("meta"),
    "torch.device cpu": lambda: torch.device("cpu"),
    "default device meta": lambda: _default_device("meta"),
    "dispatch mode": lambda: FlopCounterMode(display=False),
}


class MakesTensors(nn.Module):
    """Creates tensors without saying where: on the default device, which is the host."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * torch.ones(4).sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_the_answer_is_the_same_inside(context: str, precision: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), MakesTensors())
    expected = extract(model, (8,), precision=precision)
    with CONTEXTS[context]():
        before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
        nesting = torch.autocast_increment_nesting()
        inside = extract(model, (8,), precision=precision)
        assert torch.autocast_increment_nesting() == nesting + 1
        torch.autocast_decrement_nesting()
        torch.autocast_decrement_nesting()
        assert before == (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
        )
    assert inside == expected


def test_a_default_device_cuda_is_the_traced_one() -> None:
    class NeedsDefault(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) + torch.ones(x.shape[0], 4)  # type: ignore[no-any-return]

    model = NeedsDefault()
    with torch.device("cuda"):
        assert extract(model, (8,)).estimate(4).requested_peak.likely > 0


def test_anomaly_detection_finds_nothing() -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert extract(models.mlp(), (8,)).estimate(4).requested_peak.likely > 0


def test_a_default_dtype_is_the_scripts_own() -> None:
    model = models.mlp()
    single = extract(model, (8,)).estimate(64).breakdown
    torch.set_default_dtype(torch.float64)
    try:
        wide = extract(models.mlp(), ((8,), torch.float64)).estimate(64).breakdown
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert wide["param"] == 2 * single["param"]


def test_models_built_in_inference_mode() -> None:
    with torch.inference_mode():
        model = models.mlp()
    assert extract(model, (8,)) == extract(models.mlp(), (8,))


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch 2.9 brought these settings")
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_the_new_precision_settings_may_be_in_use(precision: str) -> None:
    cudnn: Any = torch.backends.cudnn
    conv = cudnn.conv
    before = conv.fp32_precision
    conv.fp32_precision = precision
    try:
        assert extract(models.convolutional(), (3, 8, 8), precision="tf32").estimate(4).requested_peak.likely > 0
        assert conv.fp32_precision == precision
    finally:
        conv.fp32_precision = before
