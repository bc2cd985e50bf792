"""In a process that uses CUDA: a model there is extracted as on the host, and nothing on the device moves.

Runs where torch finds a device: on a real one, or with the tests started on the virtual GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gpumem.api import extract

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _device_state() -> dict[str, Any]:
    statistics = torch.cuda.memory_stats()
    return {
        "allocations": statistics["allocation.all.allocated"],
        "segments": statistics["segment.all.allocated"],
        "random": torch.cuda.get_rng_state().tolist(),
        "device": torch.cuda.current_device(),
        "stream": torch.cuda.current_stream(),
    }


def test_a_model_on_cuda_stays_there_and_answers_as_on_the_host() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(), nn.Flatten(), nn.Linear(8 * 36, 4))
    expected = extract(model, (3, 8, 8))
    model.cuda()
    model.bank = torch.ones(1 << 20, device="cuda")
    model(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
    before = _device_state()
    assert extract(model, (3, 8, 8)) == expected
    assert _device_state() == before
    assert all(tensor.is_cuda for tensor in model.state_dict().values())
