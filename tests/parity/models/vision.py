"""`tv:` every torchvision model of classification, segmentation, optical flow and video, without weights."""

from __future__ import annotations

from typing import Any

from gpumem.extraction.inputs import parse_input
from tests.parity.models.base import LoadedModel

_SIDES = {"inception_v3": 299}
_NO_INITIAL_WEIGHTS = ("googlenet", "inception_v3")


def _kind(builder: Any) -> str:
    parts = builder.__module__.removeprefix("torchvision.models").strip(".").split(".")
    return parts[0] if parts[0] in ("segmentation", "optical_flow", "video", "detection", "quantization") else "class"


def names() -> list[str]:
    """All but detection (proposals depend on values) and quantized models."""
    import torchvision

    listed = torchvision.models.list_models()
    kinds = ("class", "segmentation", "optical_flow", "video")
    return [name for name in listed if _kind(torchvision.models.get_model_builder(name)) in kinds]


def classification() -> list[str]:
    """The classification models."""
    import torchvision

    return [name for name in names() if _kind(torchvision.models.get_model_builder(name)) == "class"]


def load(name: str) -> LoadedModel:
    """Build one model with its usual input size (segmentation at 224 to keep runs short)."""
    import torchvision

    builder = torchvision.models.get_model_builder(name)
    kind = _kind(builder)
    arguments: dict[str, Any] = {"weights": None}
    if kind == "segmentation":
        arguments["weights_backbone"] = None
    if name in _NO_INITIAL_WEIGHTS:
        arguments["init_weights"] = False
    model = builder(**arguments)
    if kind == "optical_flow":
        return LoadedModel(model, parse_input([(3, 128, 128), (3, 128, 128)]))
    if kind == "video":
        side = 112 if "mc3" in name or "r3d" in name or "r2plus1d" in name else 224
        return LoadedModel(model, parse_input((3, 16, side, side)))
    side = _SIDES.get(name, 224)
    return LoadedModel(model, parse_input((3, side, side)))
