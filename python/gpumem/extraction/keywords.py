"""The keywords of `extract`, for those that take the same and hand them on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from gpumem.extraction import extract


def loop_keywords(given: Mapping[str, Any]) -> dict[str, Any]:
    """All keywords of `gpumem.extract` that describe the loop, with its defaults where none is given.

    Raises:
        TypeError: a keyword that `extract` does not have.
    """
    parameters = inspect.signature(extract).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY and name != "batches"}
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        raise TypeError(f"unexpected keyword argument '{unknown[0]}'")
    return {**defaults, **given}
