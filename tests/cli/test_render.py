"""The text of a report, whole: any change of it is seen in review.

After a wanted change: `GPUMEM_RENEW_GOLDEN=1 python -m pytest tests/cli/test_render.py`, then read the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import gpumem
from gpumem.render import gpus_text, report_text
from gpumem.units import format_bytes

DATA = Path(__file__).parent / "data"


@pytest.fixture
def report() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / "report.json").read_text())
    return data


def _same_as_golden(name: str, text: str) -> None:
    golden = DATA / name
    if os.environ.get("GPUMEM_RENEW_GOLDEN"):
        golden.write_text(text + "\n")
    assert text + "\n" == golden.read_text()


def test_a_report_that_does_not_fit(report: dict[str, Any]) -> None:
    _same_as_golden("does_not_fit.txt", report_text(report, title="timm resnet18", notes=["input: guessed"]))


def test_a_report_that_fits(report: dict[str, Any]) -> None:
    report.update(budget_bytes=24 * 10**9, fits=True, out_of_memory=None, unsupported=[], mode="infer")
    _same_as_golden("fits.txt", report_text(report))


def test_fitting_by_giving_the_cache_back_is_said(report: dict[str, Any]) -> None:
    report.update(budget_bytes=report["device_peak"]["high"] - 1, fits=True, out_of_memory=None)
    assert "because the allocator gives cached segments back" in report_text(report)


def test_without_a_budget_there_is_no_verdict(report: dict[str, Any]) -> None:
    report.update(budget_bytes=None, fits=None, out_of_memory=None)
    assert "fit in" not in report_text(report).lower()


def test_every_byte_of_the_breakdown_is_shown(report: dict[str, Any]) -> None:
    text = report_text(report)
    for name, size in report["breakdown"].items():
        if size:
            assert any(line.split()[:1] == [name] and format_bytes(size) in line for line in text.splitlines()), name


def test_text_is_as_wide_as_asked_and_plain(report: dict[str, Any]) -> None:
    for width in (60, 100, 140):
        text = report_text(report, width=width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert "\x1b" not in text


def test_colour_adds_nothing_but_colour(report: dict[str, Any]) -> None:
    from rich.text import Text

    colored = report_text(report, color=True)
    assert "\x1b[" in colored
    plain = "\n".join(line.rstrip() for line in Text.from_ansi(colored).plain.splitlines())
    assert plain.split() == report_text(report).split()


def test_names_that_look_like_markup_stay_as_they_are(report: dict[str, Any]) -> None:
    report["layers"][0]["path"] = "blocks[0].:smile:[bold]"
    assert "blocks[0].:smile:[bold]" in report_text(report)


def test_gpus_are_listed_with_exact_bytes() -> None:
    text = gpus_text(gpumem.gpus())
    for gpu in gpumem.gpus():
        assert gpu.name in text
        assert f"{gpu.total_bytes:,}" in text
