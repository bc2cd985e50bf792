"""Where a prediction is put to the test: `cuda:0`, or `virtual:rtx3090`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gpumem._core import find_gpu, gpus
from gpumem.errors import InputError
from gpumem.validation.measurement import DeviceFacts

_HINT = "on='cuda:0' for a real device, on='virtual:rtx3090' for a virtual one (`gpumem gpus` lists the cards)"
_CUDA = re.compile(r"cuda(?::(\d+))?")
_VIRTUAL = "virtual:"


@dataclass(frozen=True)
class Place:
    """A device.

    Attributes:
        text: As it was asked for.
        gpu: The card of a virtual device; None for a real one.
        index: Number of a real device.
    """

    text: str
    gpu: str | None
    index: int


def parse_place(on: Any) -> Place:
    """Read `on`.

    Args:
        on: `cuda`, `cuda:1`, a `torch.device` of those, or `virtual:` and the name of a card.

    Raises:
        InputError: it is neither.
        UnknownNameError: there is no such card.
    """
    text = str(on).strip()
    found = _CUDA.fullmatch(text)
    if found is not None:
        return Place(text, None, int(found[1] or 0))
    if not text.startswith(_VIRTUAL):
        raise InputError(f"on={text!r} is no device to run on", _HINT)
    card = find_gpu(text.removeprefix(_VIRTUAL).strip())
    return Place(f"{_VIRTUAL}{card.name}", card.name, 0)


def card_of(facts: DeviceFacts) -> str | None:
    """Name of the profile of a real device; None where there is none."""
    alike = [card for card in gpus() if card.torch_name == facts.name]
    nearest = min(alike, key=lambda card: abs(card.total_bytes - facts.total_bytes), default=None)
    return None if nearest is None else nearest.name
