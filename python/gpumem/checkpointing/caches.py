"""Key-value caches of transformers: a region that fills one would fill it again when it is run again."""

from __future__ import annotations

import copy
import sys
from typing import Any

from torch import nn

from gpumem.errors import RegionError


def without_fresh_caches(
    label: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with None in place of every empty cache, and `use_cache` off if there was one.

    In training such a cache is filled and never read, which is why transformers leaves it out too where it checkpoints.

    Raises:
        RegionError: a cache that already holds states of this region, which cannot be left out.
    """
    library = sys.modules.get("transformers.cache_utils")
    kind = getattr(library, "Cache", None)
    if kind is None or not any(isinstance(value, kind) for value in (*args, *kwargs.values())):
        return args, kwargs
    layer = _layer_index(module)

    def left_out(value: Any) -> Any:
        if not isinstance(value, kind):
            return value
        if value.get_seq_length(layer):
            raise RegionError(
                f"region '{label}' was given a key-value cache that already holds states; run again in the backward "
                "pass it would append to it a second time",
                "train without the cache (use_cache=False, no past_key_values), or leave this region out",
            )
        return None

    kept = {name: left_out(value) for name, value in kwargs.items()}
    if kept.get("use_cache") is True:
        kept["use_cache"] = False
    return tuple(left_out(value) for value in args), kept


def _layer_index(module: nn.Module) -> int:
    """The index under which the module's attention stores its states."""
    for inner in module.modules():
        index = getattr(inner, "layer_idx", None)
        if isinstance(index, int):
            return index
    return 0


def caches_left_out(model: nn.Module) -> None:
    """Have a copy of a model train without key-value caches, as transformers itself does where it checkpoints.

    Configurations are replaced, not changed: the original model may share them.
    """
    replaced: dict[int, Any] = {}
    for module in model.modules():
        config = module.__dict__.get("config")
        if getattr(config, "use_cache", False) is True:
            if id(config) not in replaced:
                replaced[id(config)] = copy.copy(config)
                replaced[id(config)].use_cache = False
            module.__dict__["config"] = replaced[id(config)]


def switch_caches_off(model: nn.Module) -> list[Any]:
    """The same for a model itself; returns the configurations that were changed, for `switch_caches_on`."""
    configs = {
        id(config): config for module in model.modules() if (config := module.__dict__.get("config")) is not None
    }
    changed: list[Any] = []
    try:
        for config in configs.values():
            if getattr(config, "use_cache", False) is True:
                config.use_cache = False
                changed.append(config)
    except Exception:
        switch_caches_on(changed)
        raise
    return changed


def switch_caches_on(changed: list[Any]) -> None:
    """Undo `switch_caches_off`."""
    for config in changed:
        config.use_cache = True
