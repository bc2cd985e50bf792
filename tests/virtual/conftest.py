from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def programs(virtual_gpu: None) -> Path:
    """Programs to run on the virtual GPU."""
    return Path(__file__).with_name("programs")
