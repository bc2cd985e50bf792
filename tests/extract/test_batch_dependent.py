"""Models whose allocations are no polynomial in the batch are told from those that are, and still answered."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from gpumem.api import estimate, extract, max_batch
from gpumem.errors import BatchDependentError
from tests.extract import models


@pytest.mark.parametrize("make", [models.PadsToEight, models.InChunks])
def test_a_spec_for_all_batches_is_refused(make: type[nn.Module]) -> None:
    with pytest.raises(BatchDependentError, match="batch") as caught:
        extract(make(), (8,))
    assert "gpumem.estimate" in caught.value.hint


@pytest.mark.parametrize("make", [models.PadsToEight, models.InChunks])
@pytest.mark.parametrize("batch", [1, 4, 9, 20])
def test_estimate_traces_the_batch_itself(make: type[nn.Module], batch: int) -> None:
    model = make()
    assert estimate(model, (8,), batch=batch) == extract(model, (8,), batches=(batch,)).estimate(batch)


@pytest.mark.parametrize("make", [models.PadsToEight, models.InChunks])
def test_max_batch_fits_and_the_next_does_not(make: type[nn.Module]) -> None:
    model = make()
    setting: dict[str, Any] = {"budget": "32MiB", "context": "1MiB"}
    batch = max_batch(model, (8,), **setting)
    assert batch > 1
    assert extract(model, (8,), batches=(batch,)).fits(batch, **setting)
    assert not extract(model, (8,), batches=(batch + 1,)).fits(batch + 1, **setting)


def test_quadratic_sizes_are_polynomials() -> None:
    model = models.Contrastive()
    spec = extract(model, (8,))
    for batch in (50, 300):
        traced = extract(model, (8,), batches=(batch,)).estimate(batch)
        assert spec.estimate(batch).requested_peak == traced.requested_peak


@pytest.mark.parametrize("batch", [99, 100, 3000])
def test_a_threshold_beyond_the_traced_batches_is_seen(batch: int) -> None:
    model = models.WiderFrom(100)
    assert estimate(model, (8,), batch=batch) == extract(model, (8,), batches=(batch,)).estimate(batch)


def test_the_largest_batch_is_confirmed_by_its_own_trace() -> None:
    model = models.WiderFrom(100)
    setting: dict[str, Any] = {"budget": "32MiB", "context": "1MiB"}
    unconfirmed = extract(model, (8,)).max_batch(**setting)
    batch = max_batch(model, (8,), **setting)
    assert 100 < batch < unconfirmed
    assert extract(model, (8,), batches=(batch,)).fits(batch, **setting)
    assert not extract(model, (8,), batches=(batch + 1,)).fits(batch + 1, **setting)
