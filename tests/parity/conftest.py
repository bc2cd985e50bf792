from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.parity import virtual


@pytest.fixture(scope="session")
def virtual_gpu(virtual_gpu: None) -> Iterator[None]:
    """The virtual GPU, with its child processes stopped at the end."""
    yield
    virtual.stop_children()
