from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpumem.validation import Session

CARD = "virtual:rtx3090"


@pytest.fixture(scope="session")
def session(virtual_gpu: None) -> Iterator[Session]:
    """One process on a virtual RTX 3090 for all tests; convolutions take no workspace."""
    with Session(CARD, library_workspaces=False, timeout=120) as opened:
        yield opened
