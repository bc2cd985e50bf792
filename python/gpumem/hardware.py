"""On which real cards predictions were confirmed: `confirmed.txt`, written from the recordings in the tests."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Confirmed:
    """A recording on a real card that every prediction for it agrees with.

    Attributes:
        gpu: Name of the profile.
        torch: Version of PyTorch.
        what: How much was compared.
    """

    gpu: str
    torch: str
    what: str


@functools.cache
def confirmed() -> tuple[Confirmed, ...]:
    """All of them; none until something was recorded."""
    lines = (Path(__file__).parent / "confirmed.txt").read_text(encoding="utf-8").splitlines()
    return tuple(Confirmed(*line.split("\t")) for line in lines if not line.startswith("#"))


def unconfirmed(gpu: str | None) -> str:
    """What a prediction for this card has to say; empty where it was confirmed on one."""
    known = confirmed()
    if any(one.gpu == gpu for one in known):
        return ""
    if not known:
        return "not yet confirmed on real hardware"
    others = ", ".join(f"{one.gpu} ({one.torch})" for one in known)
    return f"not yet confirmed on real hardware of this kind; confirmed on {others}"
