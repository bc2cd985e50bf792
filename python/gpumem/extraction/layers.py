"""Which module is running: the dotted path of the innermost module call, told to the recorder."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from torch import nn

from gpumem.extraction.recorder import Recorder


def index_layers(model: nn.Module, rec: Recorder) -> dict[int, int]:
    """Name the modules of `model` in `rec.layers`; returns `id(module)` to index. The model itself is layer 0."""
    index: dict[int, int] = {}
    for path, module in model.named_modules():
        index[id(module)] = len(rec.layers) if path else 0
        if path:
            rec.layers.append(path)
    return index


@contextlib.contextmanager
def layers_followed(index: dict[int, int], rec: Recorder) -> Iterator[None]:
    """While active, calls of the indexed modules in this thread move the recorder's current layer.

    `nn.Module.__call__` is wrapped instead of registering hooks: hooks, also global ones, switch off fast paths of
    PyTorch's own modules and would change what is traced.
    """
    original: Any = nn.Module.__call__
    thread = threading.get_ident()

    def followed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        layer = index.get(id(module)) if threading.get_ident() == thread else None
        if layer is None:
            return original(module, *args, **kwargs)
        rec.enter_layer(layer)
        try:
            return original(module, *args, **kwargs)
        except BaseException:
            rec.note_failure()
            raise
        finally:
            rec.leave_layer()

    nn.Module.__call__ = followed  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
