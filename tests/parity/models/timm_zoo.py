"""`timm:` every timm architecture at its default (training) input size."""

from __future__ import annotations

from gpumem.extraction.inputs import parse_input
from tests.parity.models.base import LoadedModel


def names() -> list[str]:
    """All architectures, without weight tags."""
    import timm

    found: list[str] = timm.list_models()
    return found


def load(name: str) -> LoadedModel:
    """Build one model."""
    import timm

    model = timm.create_model(name)
    settings = model.default_cfg
    size = settings["input_size"]
    if not settings.get("fixed_input_size"):
        size = settings.get("train_input_size") or size
    return LoadedModel(model, parse_input(tuple(size)))
