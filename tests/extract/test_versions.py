"""Common models in every torch that is supported; `tools/check_versions.py` runs this in old ones too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from gpumem.api import extract
from gpumem.extract import TensorSpec

IMAGE = (3, 64, 64)
TOKENS = TensorSpec((12,), torch.int64)


def _vision(name: str, **keywords: Any) -> Callable[[], nn.Module]:
    return lambda: torchvision.models.get_model(name, weights=None, **keywords)


class _Language(nn.Module):
    """Embedding, encoder, tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.output = nn.Linear(32, 100, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.encoder(self.embedding(tokens)))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "resnet18": (_vision("resnet18"), IMAGE),
    "vit_b_16": (_vision("vit_b_16", image_size=64, num_layers=2), IMAGE),
    "swin_t": (_vision("swin_t"), IMAGE),
    "convnext_tiny": (_vision("convnext_tiny"), IMAGE),
    "mobilenet_v3_small": (_vision("mobilenet_v3_small"), IMAGE),
    "efficientnet_b0": (_vision("efficientnet_b0"), IMAGE),
    "shufflenet": (_vision("shufflenet_v2_x0_5"), IMAGE),
    "vgg11_bn": (_vision("vgg11_bn"), IMAGE),
    "fcn": (_vision("fcn_resnet50", weights_backbone=None), IMAGE),
    "LSTM": (lambda: nn.LSTM(16, 16, 2, batch_first=True), (5, 16)),
    "GRU": (lambda: nn.GRU(16, 16, batch_first=True, bidirectional=True), (5, 16)),
    "Transformer": (lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True), ((5, 16), (4, 16))),
    "attention": (lambda: nn.MultiheadAttention(16, 2, batch_first=True), ((5, 16), (5, 16), (5, 16))),
    "language": (_Language, TOKENS),
    "norms": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8)), IMAGE),
    "RMSNorm": (lambda: nn.Sequential(nn.Linear(16, 16), nn.RMSNorm(16)), (16,)),
}
LOOPS: dict[str, dict[str, Any]] = {
    "fp32": {"optimizer": ("sgd", {"momentum": 0.9})},
    "amp-fp16": {"precision": "amp-fp16", "optimizer": "adamw", "clip_grad_norm": 1.0},
    "amp-bf16": {"precision": "amp-bf16", "optimizer": ("adam", {"fused": True}), "accumulate": 2},
    "bf16": {"precision": "bf16", "optimizer": ("sgd", {"foreach": False}), "zero_grad": "zero"},
    "infer": {"mode": "infer", "precision": "amp-fp16"},
}


def _criterion(output: Any, target: Any) -> torch.Tensor:
    tensor = output
    while not isinstance(tensor, torch.Tensor):
        tensor = tensor["out"] if isinstance(tensor, dict) else tensor[0]
    return tensor.float().pow(2).mean()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", MODELS)
def test_it_is_traced(name: str, loop: str) -> None:
    make, shape = MODELS[name]
    model = make()
    keywords = LOOPS[loop] if "mode" in LOOPS[loop] else {**LOOPS[loop], "criterion": _criterion}
    report = extract(model, shape, **keywords).estimate(16)
    itemsize = 2 if loop == "bf16" else 4
    weights = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values()) * itemsize
    assert report.breakdown["param"] == weights
    assert report.requested_peak.likely > weights
    assert report.unsupported is not None


@pytest.mark.parametrize("optimizer", ["adadelta", "adagrad", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"])
def test_optimizers(optimizer: str) -> None:
    model = nn.Linear(64, 64)
    assert extract(model, (64,), optimizer=optimizer).estimate(4).requested_peak.likely > 0
