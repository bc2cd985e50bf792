"""The dynamic symbols of a 64-bit little-endian ELF file: what a shared library needs and what it has."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"
_DYNSYM = 11
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_UNDEFINED = 0


@dataclass(frozen=True)
class DynamicSymbols:
    """Names without versions.

    Attributes:
        needed: Undefined symbols, which other libraries must have.
        provided: Defined symbols.
    """

    needed: frozenset[str]
    provided: frozenset[str]


def dynamic_symbols(file: Path) -> DynamicSymbols:
    """Read the dynamic symbol table.

    Raises:
        ValueError: if it is not such a file.
    """
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != _MAGIC:
            raise ValueError(f"{file} is not a 64-bit little-endian ELF file")
        (sections_at,) = struct.unpack_from("<Q", data, 0x28)
        entry_bytes, count = struct.unpack_from("<HH", data, 0x3A)
        sections = [_SECTION_HEADER.unpack_from(data, sections_at + index * entry_bytes) for index in range(count)]
        needed: set[str] = set()
        provided: set[str] = set()
        for _, kind, _, _, offset, size, strings, _, _, _ in sections:
            if kind != _DYNSYM:
                continue
            strings_at = sections[strings][4]
            for at in range(offset, offset + size, _SYMBOL.size):
                name, _, _, section, _, _ = _SYMBOL.unpack_from(data, at)
                end = data.find(b"\0", strings_at + name)
                text = data[strings_at + name : end].decode()
                (needed if section == _UNDEFINED else provided).add(text)
    return DynamicSymbols(frozenset(needed - {""}), frozenset(provided))
