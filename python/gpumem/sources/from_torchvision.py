"""`torchvision:NAME`. Input sizes come from the model itself or from the metadata of the library's weights."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from gpumem.errors import InputError, UnknownNameError
from gpumem.sources.source import Source, load, nearest_hint

if TYPE_CHECKING:
    from torch import nn

_PACKAGE = "torchvision"
_CHANNELS = 3
# torchvision's weights do not state the size they were trained at. Training crops of the RAFT authors' first stage
# (FlyingChairs), which torchvision's reference script also takes.
_FLOW_SIZE = (368, 496)
_CLIP_LENGTH = re.compile(r"clip_len=(\d+)")
_CLIP_LENGTH_DEFAULT = 16
# Not left to the library: their defaults would download a backbone, or warn about a slow initialisation.
_WITHOUT_WEIGHTS = {"weights": None, "weights_backbone": None, "init_weights": False}


def resolve(name: str, mode: str, input: Any) -> Source:
    """Build the torchvision model `name` without weights.

    Raises:
        UnknownNameError: if torchvision has no such model.
        InputError: if torchvision is not installed, or the model cannot be traced without data.
    """
    from gpumem.sources.empty_build import build_empty

    models = load("torchvision.models", _PACKAGE)
    known = models.list_models()
    if name.lower() not in known:
        raise UnknownNameError(
            f"torchvision has no model {name!r}",
            nearest_hint(name, known, "torchvision.models.list_models() lists them"),
        )
    builder = models.get_model_builder(name.lower())
    kind = builder.__module__.removeprefix("torchvision.models.").partition(".")[0]
    if kind == "detection":
        raise InputError(
            f"torchvision:{name} chooses boxes by their scores, which a trace without data has not",
            "estimate its backbone (for example torchvision:resnet50); or in Python, pass the module with your own "
            "step= (it makes the targets and calls model(list(batch), targets)) and host_reads='zeros'",
        )
    if kind == "quantization":
        raise InputError(f"torchvision:{name} is quantised and runs on CPUs only", f"nearest: {name.partition('_')[2]}")
    accepted = inspect.signature(inspect.unwrap(builder)).parameters
    arguments = {key: value for key, value in _WITHOUT_WEIGHTS.items() if key in accepted}
    model = build_empty(lambda: builder(**arguments))
    assumptions: list[str] = []
    if input is None:
        input, sentence = _input_of(model, [_first_weights(models, name.lower())])
        assumptions.append(sentence)
    return Source(model, input, f"torchvision {name.lower()}", assumptions)


def guess_input(model: nn.Module, mode: str) -> tuple[Any, str] | None:
    """The input of an instance of one of torchvision's models, by the module that defines its class."""
    defined_in = type(model).__module__
    models = sys.modules.get("torchvision.models")
    if models is None or not defined_in.startswith("torchvision.models."):
        return None
    # Segmentation heads share a base class in `_utils`; any of their weights tells the size.
    package = defined_in.removesuffix("._utils")
    names = [n for n in models.list_models() if models.get_model_builder(n).__module__.startswith(package)]
    weights = [_first_weights(models, name) for name in names]
    return _input_of(model, weights) if weights else None


def _first_weights(models: Any, name: str) -> Any:
    # The first weights were trained at the model's own default size; later ones (SWAG) at larger ones.
    return next(iter(models.get_model_weights(name)))


def _input_of(model: nn.Module, weights: list[Any]) -> tuple[Any, str]:
    kind = type(model).__module__.removeprefix("torchvision.models.").partition(".")[0]
    if kind == "optical_flow":
        image = (_CHANNELS, *_FLOW_SIZE)
        return (image, image), f"input: two images {image}, the crop of the RAFT authors' FlyingChairs stage"
    size = getattr(model, "image_size", None)
    said_by = "the model's own image_size"
    if not isinstance(size, int):
        sizes = Counter(_image_size(entry) for entry in weights)
        size, said_by = sizes.most_common(1)[0][0], "torchvision's weights metadata"
    if kind != "video":
        return (_CHANNELS, size, size), f"input ({_CHANNELS}, {size}, {size}) per sample, from {said_by}"
    frames = Counter(_clip_length(entry) for entry in weights).most_common(1)[0][0]
    shape = (_CHANNELS, frames, size, size)
    return shape, f"input {shape} per sample ({frames} frames), from {said_by}"


def _image_size(weights: Any) -> int:
    preset = weights.transforms()
    size = getattr(preset, "crop_size", None) or preset.resize_size
    return int(size[0] if isinstance(size, (list, tuple)) else size)


def _clip_length(weights: Any) -> int:
    found = _CLIP_LENGTH.search(weights.meta.get("_docs", ""))
    return int(found[1]) if found else _CLIP_LENGTH_DEFAULT
