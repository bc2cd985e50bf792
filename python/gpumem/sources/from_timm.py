"""`timm:NAME`. Input sizes come from the model's patch embedding or from timm's pretrained configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumem.errors import UnknownNameError
from gpumem.sources.source import Source, load, nearest_hint

if TYPE_CHECKING:
    from torch import nn

_PACKAGE = "timm"


def resolve(name: str, mode: str, input: Any) -> Source:
    """Build the timm model `name` (an architecture, or `architecture.tag`) without weights.

    Raises:
        UnknownNameError: if timm has no such model.
        InputError: if timm is not installed.
    """
    from gpumem.sources.empty_build import build_empty

    timm = load("timm", _PACKAGE)
    if not timm.is_model(name):
        known = timm.list_models()
        raise UnknownNameError(
            f"timm has no model {name!r}", nearest_hint(name.partition(".")[0], known, "timm.list_models() lists them")
        )
    model = build_empty(lambda: timm.create_model(name, pretrained=False))
    assumptions: list[str] = []
    size = _other_size(model, input)
    if size is not None:
        # Position embeddings and windows are made for one size of image.
        model = build_empty(lambda: timm.create_model(name, pretrained=False, img_size=size))
        assumptions.append(f"built for images of {size[0]} x {size[1]}, the size of the input")
    if input is None:
        guess = guess_input(model, mode)
        if guess is not None:
            input = guess[0]
            assumptions.append(guess[1])
    return Source(model, input, f"timm {name}", assumptions)


def _other_size(model: nn.Module, input: Any) -> tuple[int, int] | None:
    """Height and width of a given image, where the model was built for another size and takes no other."""
    embed = getattr(model, "patch_embed", None)
    built_for = getattr(embed, "img_size", None)
    is_image = isinstance(input, tuple) and len(input) == 3 and all(type(size) is int for size in input)
    if not is_image or not isinstance(built_for, (tuple, list)) or not getattr(embed, "strict_img_size", False):
        return None
    height, width = int(input[1]), int(input[2])
    return None if tuple(built_for) == (height, width) else (height, width)


def guess_input(model: nn.Module, mode: str) -> tuple[Any, str] | None:
    """The input of an instance of one of timm's models: size it was built for, else the size of its configuration."""
    found = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    config: dict[str, Any] = found if isinstance(found, dict) else {}
    size = config.get("input_size")
    if not isinstance(size, (tuple, list)) or len(size) != 3:
        return None
    channels, height, width = (int(n) for n in size)
    said_by = "timm's pretrained_cfg"
    built_for = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if isinstance(built_for, (tuple, list)) and len(built_for) == 2 and tuple(built_for) != (height, width):
        (height, width), said_by = (int(n) for n in built_for), "the model's patch_embed.img_size"
    shape = (_input_channels(model, config, channels), height, width)
    return shape, f"input {shape} per sample, from {said_by}"


def _input_channels(model: nn.Module, config: dict[str, Any], default: int) -> int:
    """Channels that the first convolution really takes; `in_chans` may differ from the configuration."""
    first = config.get("first_conv")
    path = first[0] if isinstance(first, (tuple, list)) and first else first
    if not isinstance(path, str):
        return default
    try:
        channels = getattr(model.get_submodule(path), "in_channels", default)
    except AttributeError:
        return default
    # A multiple means that space-to-depth or a group of frames stands in front of the convolution.
    return channels if isinstance(channels, int) and channels % default != 0 else default
