"""The virtual GPU, for every test that compares with CUDA; where there is none, the end of the run says so."""

from __future__ import annotations

import functools

import pytest

from gpumem.errors import VirtualDeviceError
from gpumem.virtual import installed

_SKIPPED = "no virtual GPU: "


@functools.cache
def _reason_missing() -> str:
    try:
        installed.library()
        installed.torch()
    except VirtualDeviceError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def virtual_gpu() -> None:
    """Skips where there is no virtual GPU."""
    if _reason_missing():
        pytest.skip(_SKIPPED + _reason_missing())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    skipped = [report for report in reports if _SKIPPED in str(report.longrepr)]
    if skipped:
        terminalreporter.section("NOT COMPARED WITH CUDA")
        terminalreporter.write_line(f"{len(skipped)} tests did not run: {_reason_missing()}")
