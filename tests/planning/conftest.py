"""One loop whose plans several tests ask for."""

from __future__ import annotations

import pytest

from gpumem.extraction.keywords import loop_keywords
from gpumem.planning.loops import PlannedLoop
from tests.planning.models import SAMPLE, Tower

BATCH = 64


@pytest.fixture(scope="session")
def tower() -> PlannedLoop:
    """`Tower` at one batch size."""
    return PlannedLoop(Tower(), SAMPLE, (BATCH,), loop_keywords({"optimizer": "adamw"}))
