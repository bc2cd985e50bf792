"""Detection models in training need targets, which only the user's own step can make."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpumem.api import estimate
from gpumem.errors import ExtractionError

torchvision = pytest.importorskip(
    "torchvision", reason="models of torchvision are tested; old versions of torch run without"
)
IMAGE = (3, 128, 128)


@pytest.fixture(scope="module")
def detector() -> nn.Module:
    return torchvision.models.detection.ssdlite320_mobilenet_v3_large(  # type: ignore[no-any-return]
        weights=None, weights_backbone=None, num_classes=3
    )


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor) -> None:
    targets = [
        {
            "boxes": torch.tensor([[10.0, 10.0, 60.0, 60.0]], device="cuda"),
            "labels": torch.ones(1, dtype=torch.int64, device="cuda"),
        }
        for _ in images
    ]
    optimizer.zero_grad()
    sum(model(list(images), targets).values()).backward()
    optimizer.step()


def test_without_targets_the_way_out_is_told(detector: nn.Module) -> None:
    with pytest.raises(ExtractionError, match="targets should not be none") as caught:
        estimate(detector, IMAGE, batch=2)
    for part in ("step=", "model(list(batch), targets)", "host_reads='zeros'"):
        assert part in caught.value.hint


def test_the_way_out_leads_out(detector: nn.Module) -> None:
    weights = sum(parameter.nbytes for parameter in detector.parameters())
    report = estimate(detector, IMAGE, batch=2, step=_step, host_reads="zeros")
    assert int(report.requested_peak) > 3 * weights
    assert any("taken as zero" in line for line in report.assumptions)
