"""A model's structure as text that a plan carries, so that a plan for another model is refused by what differs."""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import zlib
from collections.abc import Iterator

from torch import nn

from gpumem.errors import ModelMismatchError

_VERSION = "gpumem-structure-1"
# A name for people and caches; equality is decided by the text itself.
_DIGEST_CHARACTERS = 16
_LARGEST_TEXT_BYTES = 1 << 28


def fingerprint(model: nn.Module) -> str:
    """The structure of `model`: module paths and classes, names, shapes and dtypes of parameters; no values.

    An applied plan, training mode, device and frozen parameters make no difference.

    Returns:
        `gpumem-structure-1:<digest>:<structure, compressed>`, of a few kilobytes at most since repeated blocks
        compress. The digest alone tells structures apart; the rest lets `first_difference` say where they differ.
    """
    text = "\n".join(_lines(model)).encode()
    digest = hashlib.sha256(text).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{_VERSION}:{digest}:{base64.b85encode(zlib.compress(text, 9)).decode()}"


def first_difference(model: nn.Module, stored: str, *, dtypes: bool = True) -> str | None:
    """In words, the first place where `model` is not the model of a fingerprint; None if they are the same.

    Args:
        model: Any module.
        stored: From `fingerprint`.
        dtypes: Whether parameters must have the same dtype (not for a plan whose precision converts the model).

    Raises:
        ModelMismatchError: `stored` is no fingerprint, or one of a newer kind.
    """
    for planned, found in itertools.zip_longest(_stored_lines(stored), _lines(model)):
        if planned == found:
            continue
        if planned is None:
            return f"{_described(found)} is not in the planned model"
        if found is None:
            return f"{_described(planned)} of the planned model is missing"
        difference = _between(planned.split("\t"), found.split("\t"), dtypes)
        if difference:
            return difference
    return None


def check_fingerprint(model: nn.Module, stored: str, *, dtypes: bool = True) -> None:
    """Refuse a model that is not the one of a fingerprint; the arguments are those of `first_difference`.

    Raises:
        ModelMismatchError: it is not; the message names the first difference.
    """
    difference = first_difference(model, stored, dtypes=dtypes)
    if difference:
        raise ModelMismatchError(
            f"the plan was made for another model: {difference}", "make a plan for this model, or pass the model it had"
        )


def _lines(model: nn.Module) -> Iterator[str]:
    """A line per module and parameter, in the order of definition; what hangs in two places is named at both."""
    for path, module in model.named_modules(remove_duplicate=False):
        yield f"module\t{path}\t{type(module).__qualname__}"
        for name, parameter in module._parameters.items():
            if parameter is not None:
                shape = "x".join(map(str, parameter.shape)) or "scalar"
                yield f"parameter\t{path}.{name}\t{shape}\t{str(parameter.dtype).removeprefix('torch.')}"


def _stored_lines(stored: str) -> list[str]:
    version, _, rest = stored.partition(":")
    digest, _, packed = rest.partition(":")
    if version != _VERSION:
        raise ModelMismatchError(
            f"the plan's fingerprint is of the kind {version[:40]!r}; this version of gpumem reads {_VERSION!r}",
            "make the plan anew, or read it with the version of gpumem that wrote it",
        )
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b85decode(packed), _LARGEST_TEXT_BYTES)
        whole = unpacker.eof and hashlib.sha256(text).hexdigest()[:_DIGEST_CHARACTERS] == digest
    except (ValueError, binascii.Error, zlib.error):
        whole = False
    if not whole:
        raise ModelMismatchError("the plan's fingerprint is damaged", "make the plan anew")
    return text.decode().split("\n")


def _named(line: list[str]) -> str:
    return f"{line[0]} '{line[1].removeprefix('.')}'" if line[1] else "the model"


def _described(line: str) -> str:
    parts = line.split("\t")
    return f"{_named(parts)} ({' '.join(parts[2:])})"


def _between(planned: list[str], found: list[str], dtypes: bool) -> str | None:
    """What differs between two lines that stand at the same place, or None for a dtype that may differ."""
    if planned[:2] != found[:2]:
        return f"{_described(chr(9).join(found))} stands where the plan had {_described(chr(9).join(planned))}"
    if planned[0] == "module":
        return f"{_named(found)} is a {found[2]}, the plan had a {planned[2]}"
    if planned[2] != found[2]:
        return f"{_named(found)} has the shape {found[2]}, the plan had {planned[2]}"
    if not dtypes:
        return None
    return f"{_named(found)} is {found[3]}, the plan had {planned[3]}"
