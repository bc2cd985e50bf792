"""Sizes in and out of text: `"24GB"` to bytes, bytes to `22.35 GiB`. The only Python file that knows 1000 and 1024.

`humanfriendly`, `bitmath`, pydantic's `ByteSize` and Accelerate's converter read such strings too. This is our own
because `import gpumem` may bring neither torch nor a dependency, and because a budget needs what none of them has:
exact integer arithmetic rounded down, the core's 64-bit limit, and errors that say what to write instead.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Integral, Real

from gpumem.errors import BudgetError

MAX_BYTES = 2**64 - 1
"""Largest size the core can hold (u64)."""

UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
"""Accepted units, as Hugging Face Accelerate reads them (upper or lower case; never bits)."""

_BY_LOWER = {unit.lower(): factor for unit, factor in UNITS.items()}
_TEXT = re.compile(r"(?P<number>[+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+))\s*(?P<unit>[A-Za-z]*)")
_DIGITS_MAX = 40  # Longer numbers overflow in every unit; converting them would only take time.
_HINT = 'write a number and a unit, such as "24GB" (10^9) or "24GiB" (2^30), or give bytes as an integer'


def parse_bytes(size: float | str, what: str = "budget") -> int:
    """Read a size.

    Args:
        size: Bytes as an integer (or a float without a fraction), or a number with a unit: `"24GB"`, `"1.5 GiB"`,
            `"800mb"`. `GB` is 10^9 and `GiB` 2^30 bytes. A fraction of a byte is dropped: no budget is exceeded.
        what: What the size is, for the error's text.

    Returns:
        The size in bytes, from 1 to `MAX_BYTES`.

    Raises:
        BudgetError: if it cannot be read, or is not positive, finite and below 2^64 bytes.
    """
    if isinstance(size, bool) or not isinstance(size, (str, Real)):
        raise BudgetError(f"{what} must be an integer or a string, not {type(size).__name__} ({size!r})", _HINT)
    return _checked(_from_text(size, what) if isinstance(size, str) else _from_number(size, what), size, what)


def _from_number(size: Real, what: str) -> int:
    if isinstance(size, Integral):
        return int(size)
    value = float(size)
    if not math.isfinite(value):
        raise BudgetError(f"{what} {value} is not a finite number of bytes", _HINT)
    if not value.is_integer():
        raise BudgetError(f"{what} {value} is not a whole number of bytes", _HINT)
    return int(value)


def _from_text(text: str, what: str) -> int:
    stripped = text.strip()
    if not stripped:
        raise BudgetError(f"{what} is empty", _HINT)
    match = _TEXT.fullmatch(stripped)
    if match is None:
        raise BudgetError(f"cannot read {what} {text!r}", _HINT)
    number, unit = match["number"], match["unit"]
    if not unit:
        raise BudgetError(
            f"{what} {text!r} has no unit",
            f'write "{number}GB" or "{number}GiB" (for bytes, "{number}B" or an integer)',
        )
    factor = _BY_LOWER.get(unit.lower())
    if factor is None:
        raise BudgetError(f"{what} {text!r} has the unknown unit {unit!r}", _suggestion(number, unit))
    if len(number) > _DIGITS_MAX:
        raise BudgetError(f"{what} {text!r} is too large: the limit is 2^64 - 1 bytes", _HINT)
    return math.floor(Fraction(number.rstrip("._")) * factor)


def _suggestion(number: str, unit: str) -> str:
    prefix = unit[0].upper()
    near = [name for name in UNITS if name.startswith(prefix) and name != "B"]
    if not near:
        return f"known units: {', '.join(UNITS)}"
    decimal, binary = near
    return f'did you mean "{number}{decimal}" (10^{_power(UNITS[decimal])}) or "{number}{binary}"?'


def _power(factor: int) -> int:
    return len(str(factor)) - 1


def _checked(value: int, given: float | str, what: str) -> int:
    if value <= 0:
        raise BudgetError(f"{what} must be positive, not {given!r}", _HINT)
    if value > MAX_BYTES:
        raise BudgetError(f"{what} {given!r} is too large: the limit is 2^64 - 1 bytes", _HINT)
    return value


def format_bytes(size: int) -> str:
    """Write bytes for people, in the largest binary unit that is not above the size: `0 B`, `1.50 KiB`, `22.35 GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(size) >= UNITS[unit]:
            return f"{size / UNITS[unit]:,.2f} {unit}"
    return f"{size} B"
