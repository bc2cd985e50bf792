"""Model references (`family:name`) of the parity suite. Both sides build from here.

`load(reference)` builds the model on the host with initialisers suppressed; `names(family)` lists what a family offers.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

from tests.parity.models.base import LoadedModel, initialisers_suppressed

_MODULES = {
    "tv": "tests.parity.models.vision",
    "timm": "tests.parity.models.timm_zoo",
    "hf": "tests.parity.models.hf",
    "nn": "tests.parity.models.layers",
    "unet": "tests.parity.models.unet",
    "misc": "tests.parity.models.misc",
    "op": "tests.parity.models.ops",
    "zoo": "tests.parity.models.zoo",
}
FAMILIES = tuple(_MODULES)


def load(reference: str) -> LoadedModel:
    """Build the model that `family:name` names.

    Raises:
        KeyError: for an unknown family or name.
    """
    family, _, name = reference.partition(":")
    module = importlib.import_module(_MODULES[family])
    # What libraries warn about when a model is built is not what is tested.
    with initialisers_suppressed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: LoadedModel = module.load(name)
    return loaded


def names(family: str) -> list[str]:
    """Names of a family, sorted."""
    return sorted(importlib.import_module(_MODULES[family]).names())


def source_of_family(family: str) -> str:
    """Text of the files that build a family (`ops.py` and `ops_*.py`): part of the key of stored results."""
    path = Path(str(importlib.import_module(_MODULES[family]).__file__))
    files = [path, *sorted(path.parent.glob(f"{path.stem}_*.py"))]
    return "".join(file.read_text(encoding="utf-8") for file in files)


__all__ = ["FAMILIES", "LoadedModel", "load", "names", "source_of_family"]
