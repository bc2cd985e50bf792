"""The spinner: on stderr, on a terminal, and only when something takes long."""

from __future__ import annotations

import io
import sys
import time

import pytest

from gpumem.cli.progress import progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _shown(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, delay_s: float, work_s: float) -> str:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress("tracing", delay_s=delay_s):
        time.sleep(work_s)
    return stderr.getvalue()


def test_long_work_is_announced_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tracing" in _shown(monkeypatch, _Terminal(), delay_s=0.0, work_s=0.3)


def test_short_work_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tracing" not in _shown(monkeypatch, _Terminal(), delay_s=30.0, work_s=0.0)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shown(monkeypatch, io.StringIO(), delay_s=0.0, work_s=0.1) == ""


def test_an_error_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Terminal())
    with pytest.raises(KeyError), progress("tracing", delay_s=0.0):
        raise KeyError("x")
