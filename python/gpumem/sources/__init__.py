"""Models by name (`torchvision:resnet50`, `timm:convnext_base`, `hf:gpt2`, `module:factory`) and what input they want.

Nothing is downloaded and, where the library's constructors allow it, no weight is materialised: models are built with
meta parameters. Everything that was guessed is said in `Source.assumptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpumem.errors import UnknownNameError
from gpumem.sources import from_factory, from_timm, from_torchvision, from_transformers
from gpumem.sources.source import Source, nearest
from gpumem.text import input_from_text

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LIBRARIES", "Source", "complete_input", "guess_input", "resolve"]

LIBRARIES: Mapping[str, Callable[[str, str, Any], Source]] = {
    "torchvision": from_torchvision.resolve,
    "timm": from_timm.resolve,
    "hf": from_transformers.resolve,
}
"""What may stand before the colon, besides an importable module."""


def resolve(name: str, *, mode: str = "train", input: Any = None) -> Source:
    """Build the model that `name` means.

    Args:
        name: `torchvision:NAME`, `timm:NAME`, `hf:NAME` (a transformers model type, a local folder with a
            `config.json`, or a repository whose config is in the local cache), or `package.module:factory`, where the
            factory is called without arguments and returns a module or `(module, input)`.
        mode: `train` or `infer`; decides whether an input of a transformers model carries labels.
        input: Input description that replaces the guess (see `gpumem.extraction.inputs.parse_input`), or its text
            (`"3,224,224"`). For a transformers model, a bare shape is the shape of its main input, and the others
            follow.

    Raises:
        UnknownNameError: if the library or module has no such name; the hint says which are near.
        InputError: if the library is not installed, the factory fails, or the model cannot be built.
    """
    if isinstance(input, str):
        input = input_from_text(input)
    library, colon, rest = name.partition(":")
    if not colon or not library or not rest:
        if library in LIBRARIES:
            raise UnknownNameError(f"{name!r} names no model", f"write {library}:NAME")
        examples = ", ".join(f"{known}:{name if name and not colon else 'NAME'}" for known in LIBRARIES)
        raise UnknownNameError(f"model {name!r} names no library", f"write {examples} or package.module:factory")
    found = LIBRARIES.get(library)
    if found is not None:
        return found(rest, mode, input)
    return from_factory.resolve(library, rest, input, nearest(library, LIBRARIES))


def complete_input(model: nn.Module, shape: Any, *, mode: str = "train") -> tuple[Any, str] | None:
    """What a bare shape means to a model that takes token ids: their number, as `resolve` takes it.

    Args:
        model: Any module.
        shape: An input description.
        mode: `train` or `infer`.

    Returns:
        As `guess_input`; None when `shape` is more than a shape, or the model takes something else.
    """
    bare = isinstance(shape, (tuple, list)) and bool(shape) and all(type(size) is int and size > 0 for size in shape)
    return from_transformers.complete_input(model, tuple(shape), mode) if bare else None


def guess_input(model: nn.Module, *, mode: str = "train") -> tuple[Any, str] | None:
    """What the library that a model comes from says about its input.

    Args:
        model: Any module.
        mode: `train` or `infer` (whether labels are part of a transformers model's input).

    Returns:
        An input description for `gpumem.extraction.inputs.parse_input` and the sentence for the report, or None when
        nothing tells.
    """
    for guess in (from_timm.guess_input, from_torchvision.guess_input, from_transformers.guess_input):
        found = guess(model, mode)
        if found is not None:
            return found
    return None
