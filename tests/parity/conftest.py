from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.parity import virtual


@functools.cache
def _reason_missing() -> str:
    """Why there is no virtual GPU on this machine, or nothing."""
    try:
        virtual.library_folder()
    except virtual.UnavailableError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def virtual_gpu() -> Iterator[None]:
    """The virtual GPU; skips, and says so at the end of the run, where there is none."""
    if _reason_missing():
        pytest.skip(f"no virtual GPU: {_reason_missing()}")
    yield
    virtual.stop_children()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [
        report for report in terminalreporter.stats.get("skipped", []) if "no virtual GPU" in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.section("PARITY NOT CHECKED")
        terminalreporter.write_line(f"{len(skipped)} parity cases did not run: {_reason_missing()}")
