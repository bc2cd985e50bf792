"""Sizes as text: exact in both directions, and every mistake has a remedy."""

from __future__ import annotations

import numpy as np
import pytest

from gpumem.errors import BudgetError
from gpumem.units import MAX_BYTES, UNITS, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("24GB", 24_000_000_000),
        ("24 gb", 24_000_000_000),
        (" 24GiB ", 25_769_803_776),
        ("1.5 GiB", 1_610_612_736),
        (".5TB", 500_000_000_000),
        ("800mb", 800_000_000),
        ("2.MiB", 2_097_152),
        ("1_000KB", 1_000_000),
        ("7B", 7),
        # 107374182.4 bytes: rounded down, so the budget is not exceeded.
        ("0.1GiB", 107_374_182),
        # Not representable as a float; the last digit counts.
        ("9007199254740993B", 9_007_199_254_740_993),
        ("18446744073709551615B", MAX_BYTES),
        (1, 1),
        (MAX_BYTES, MAX_BYTES),
        (24e9, 24_000_000_000),
        (np.int64(512), 512),
        (np.float32(1024.0), 1024),
    ],
)
def test_sizes_are_read_exactly(text: float | str, expected_bytes: int) -> None:
    assert parse_bytes(text) == expected_bytes
    assert type(parse_bytes(text)) is int


def test_every_unit_is_read() -> None:
    for unit, factor in UNITS.items():
        assert parse_bytes(f"3{unit}") == 3 * factor
        assert parse_bytes(f"3 {unit.upper()}") == 3 * factor


@pytest.mark.parametrize(
    ("size", "message", "hint"),
    [
        ("24 gigs", "unknown unit 'gigs'", '"24GB"'),
        ("24 parsecs", "unknown unit 'parsecs'", "known units: B, KB"),
        ("24", "has no unit", '"24GB" or "24GiB"'),
        ("", "is empty", '"24GB"'),
        ("   ", "is empty", '"24GB"'),
        ("lots", "cannot read budget 'lots'", '"24GB"'),
        ("nanGB", "cannot read", '"24GB"'),
        ("1e3GB", "cannot read", '"24GB"'),
        ("-1GB", "must be positive, not '-1GB'", '"24GB"'),
        ("0GB", "must be positive", '"24GB"'),
        ("0.4B", "must be positive", '"24GB"'),
        (0, "must be positive, not 0", '"24GB"'),
        (-3, "must be positive, not -3", '"24GB"'),
        (float("nan"), "not a finite number", '"24GB"'),
        (float("inf"), "not a finite number", '"24GB"'),
        (1.5, "not a whole number", '"24GB"'),
        (MAX_BYTES + 1, "too large", '"24GB"'),
        (1e30, "too large", '"24GB"'),
        ("18446744073709551616B", "too large", '"24GB"'),
        ("99999999999TB", "too large", '"24GB"'),
        ("9" * 5000 + "GB", "too large", '"24GB"'),
        (True, "must be an integer or a string, not bool", '"24GB"'),
        (None, "not NoneType", '"24GB"'),
        ([24], "not list", '"24GB"'),
    ],
)
def test_a_size_that_cannot_be_used_says_what_to_write(size: object, message: str, hint: str) -> None:
    with pytest.raises(BudgetError) as caught:
        parse_bytes(size)  # type: ignore[arg-type]
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_the_error_names_what_was_read() -> None:
    with pytest.raises(BudgetError, match="context must be positive"):
        parse_bytes(0, "context")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (24_000_000_000, "22.35 GiB"),
        (2**50, "1,024.00 TiB"),
        (-5 * 2**30, "-5.00 GiB"),
    ],
)
def test_bytes_are_written_in_the_largest_fitting_unit(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text
