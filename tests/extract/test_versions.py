"""Common models in every torch that is supported; `tools/check_versions.py` runs this in old ones too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from gpumem.api import extract
from gpumem.extraction import TensorSpec

IMAGE = (3, 64, 64)
TOKENS = TensorSpec((12,), torch.int64)


def _convnext() -> nn.Module:
    block = torchvision.models.convnext.CNBlockConfig
    return torchvision.models.ConvNeXt([block(32, 64, 2), block(64, None, 2)])  # type: ignore[no-any-return]


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
    "resnet18": (lambda: torchvision.models.resnet18(), IMAGE),
    "mobilenet_v3_small": (lambda: torchvision.models.mobilenet_v3_small(), IMAGE),
    "ViT": (lambda: torchvision.models.VisionTransformer(64, 16, 2, 4, 64, 128), IMAGE),
    "Swin": (lambda: torchvision.models.SwinTransformer([4, 4], 32, [2, 2], [2, 4], [4, 4]), IMAGE),
    "ConvNeXt": (lambda: _convnext(), IMAGE),
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
    "amp-bf16": {"precision": "amp-bf16", "optimizer": ("adam", {"fused": True}), "accumulate": 2, "zero_grad": "zero"},
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
    weights = sum(p.nbytes for p in {id(p): p for p in model.parameters()}.values())
    assert report.breakdown["param"] == weights
    assert report.requested_peak.likely > weights


@pytest.mark.parametrize("optimizer", ["adadelta", "adagrad", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"])
def test_optimizers(optimizer: str) -> None:
    model = nn.Linear(64, 64)
    assert extract(model, (64,), optimizer=optimizer).estimate(4).requested_peak.likely > 0
