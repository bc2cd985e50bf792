"""The memory of bitsandbytes' AdamW8bit, against runs of bitsandbytes itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from torch import nn

import gpumem
from gpumem.extraction.adamw_8bit import AdamW8bit

# Peaks of `gpumem.loop` with `bitsandbytes.optim.AdamW8bit` (0.50.2, libbitsandbytes_cuda130) on the virtual a100-80gb
# with torch 2.14.1+cu130: requested, allocated, reserved. All requests were as predicted, in order (2,346 and 3,857).
RECORDED: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
    ("mobilenet_v3_small", {"precision": "bf16"}, (96_459_996, 99_065_856, 111_149_056)),
    ("vit_b_16", {"precision": "amp-bf16", "step_in_backward": True}, (1_279_281_504, 1_298_456_576, 1_396_703_232)),
]


@pytest.mark.parametrize(("name", "loop", "peaks"), RECORDED, ids=[name for name, *_ in RECORDED])
def test_peaks_are_those_of_bitsandbytes(name: str, loop: dict[str, Any], peaks: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
    report = gpumem.estimate(model, batch=8, gpu="a100-80gb", optimizer=AdamW8bit, **loop)
    found = (report.requested_peak, report.allocated_peak, report.reserved_peak)
    assert tuple(peak.high for peak in found) == peaks


@pytest.mark.parametrize(
    ("elements", "state_bytes"),
    [
        # Below 4,096 elements two float32; from there on two bytes, and two float32 for every 256 elements begun.
        (4_095, 8 * 4_095),
        (4_096, 2 * 4_096 + 2 * 4 * 16),
        (4_097, 2 * 4_097 + 2 * 4 * 17),
    ],
)
def test_bytes_of_a_state(elements: int, state_bytes: int) -> None:
    parameter = nn.Parameter(torch.ones(elements))
    parameter.grad = torch.ones(elements)
    optimizer = AdamW8bit([parameter])
    optimizer.step()
    state = optimizer.state[parameter]
    own = [tensor for key, tensor in state.items() if not key.startswith("qmap")]
    assert sum(tensor.nbytes for tensor in own) == state_bytes
    before = dict(state)
    optimizer.step()
    assert optimizer.state[parameter] == before
    assert torch.equal(parameter, torch.ones(elements))


def test_tables_are_shared() -> None:
    parameters = [nn.Parameter(torch.ones(5_000)) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.ones(5_000)
    optimizer = AdamW8bit(parameters)
    optimizer.step()
    first, second = (optimizer.state[parameter] for parameter in parameters)
    assert first["qmap1"] is second["qmap1"]
    assert first["qmap1"] is not first["qmap2"]
    assert first["qmap1"].nbytes == 1024
