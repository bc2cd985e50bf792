"""What each entry point of the virtual device takes, read from its sources: the parameters as Rust types by name."""

from __future__ import annotations

import re
from pathlib import Path

CRATE = Path(__file__).resolve().parents[2] / "rust" / "gpumem-vgpu"

_FUNCTION = re.compile(r'^(?:extern "C" )?fn (\w*[A-Z]\w*)\(([^)]*)\)', re.MULTILINE)
_PARAMETER = re.compile(r"(\w+): ([^,]+(?:<[^>]*>)?)")

Signature = list[tuple[str, str]]


def signatures() -> dict[str, Signature]:
    """Names and types of the parameters that each entry point reads; the rest of its arguments it ignores."""
    found: dict[str, Signature] = {}
    for source in sorted((CRATE / "src").rglob("*.rs")):
        text = re.sub(r"//.*", "", source.read_text())
        # Types with commas of their own would be cut in two.
        text = re.sub(r"Option<extern[^>]*>", "Option<Function>", text)
        for name, parameters in _FUNCTION.findall(text.split("#[cfg(test)]")[0]):
            found[name] = [(parameter, kind.strip()) for parameter, kind in _PARAMETER.findall(parameters)]
    for table in sorted((CRATE / "data").glob("*.txt")):
        for line in table.read_text().splitlines():
            behaviour, _, symbol = line.split("#")[0].strip().partition(" ")
            if symbol and behaviour not in ("own", "real", "library"):
                found[symbol] = _default(behaviour)
    return found


def _default(behaviour: str) -> Signature:
    if behaviour == "create":
        return [("out", "Out<Handle>")]
    if behaviour == "destroy":
        return [("handle", "Handle")]
    if ":" not in behaviour:
        return []
    kind, places = behaviour.split(":")[1:]
    written = {int(place) for place in places.split(",")}
    return [(f"a{index}", f"Out<{kind}>" if index in written else "usize") for index in range(max(written) + 1)]
