from __future__ import annotations

import pytest

from tests.gpu_truth.recording import DATA, recordings


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not recordings():
        terminalreporter.section("NOT CONFIRMED ON REAL HARDWARE")
        terminalreporter.write_line(f"nothing was recorded on a real card: {DATA} is empty (see CONTRIBUTING.md)")
