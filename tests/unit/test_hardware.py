from __future__ import annotations

import pytest

from gpumem import hardware


def test_a_report_says_what_was_confirmed_on_real_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "confirmed", lambda: ())
    assert hardware.unconfirmed("h200") == "not yet confirmed on real hardware"
    known = hardware.Confirmed("h200", "2.11.0+cu130", "100 loops")
    monkeypatch.setattr(hardware, "confirmed", lambda: (known,))
    assert hardware.unconfirmed("h200") == ""
    assert "confirmed on h200 (2.11.0+cu130)" in hardware.unconfirmed("rtx3090")
    assert "of this kind" in hardware.unconfirmed(None)
