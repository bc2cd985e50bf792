"""The plan that is found is the cheapest of all that fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from gpumem import ModelSpec
from gpumem._core import RegionSpace
from gpumem.errors import SpecError
from gpumem.extraction.keywords import loop_keywords
from gpumem.planning.loops import PlannedLoop
from tests.parity import ours
from tests.parity.case import Case
from tests.parity.difference import sequences_equal
from tests.planning.conftest import BATCH
from tests.planning.models import SAMPLE, Tower

# The context is left out: on this small model it would be nearly all of the budget.
TARGET: dict[str, Any] = {"gpu": "rtx3090", "context": 0}


def _choices(planned: PlannedLoop) -> Iterator[tuple[int, ...]]:
    """Every way of running every block."""
    return itertools.product(range(len(planned.variant_names)), repeat=planned.places)


@pytest.fixture(scope="module")
def every_plan(tower: PlannedLoop) -> list[tuple[ModelSpec, dict[str, str]]]:
    """All mixtures of keeping, checkpointing and selectively checkpointing whole blocks."""
    return [tower.joined(choice) for choice in _choices(tower)]


def _peak(spec: ModelSpec) -> int:
    return spec.estimate(BATCH, **TARGET).reserved_peak.high


def test_blocks_can_be_kept_or_checkpointed_or_keep_their_products(tower: PlannedLoop) -> None:
    # Without attention there is none whose output could be kept.
    assert tower.variant_names == ("keep", "checkpoint", "save:matmul")
    assert tower.places == tower.region_count == 5


def test_the_found_plan_is_the_cheapest_of_all_that_fit(
    tower: PlannedLoop, every_plan: list[tuple[ModelSpec, dict[str, str]]]
) -> None:
    peaks = sorted({_peak(spec) for spec, _ in every_plan})
    assert len(peaks) > 4
    costs = {}
    for choice, (_, regions) in zip(_choices(tower), every_plan, strict=True):
        costs[tuple(regions.items())] = tower.cost(choice, BATCH, TARGET)
    for budget in peaks:
        limited = {**TARGET, "budget": budget}
        fitting = [costs[tuple(regions.items())] for spec, regions in every_plan if spec.fits(BATCH, **limited)]
        found = tower.cheapest(BATCH, limited)
        assert found is not None
        assert found.recompute_seconds == pytest.approx(min(fitting))
    assert tower.cheapest(BATCH, {**TARGET, "budget": peaks[0] // 2}) is None


def test_a_plan_is_never_slower_than_what_fits_without_a_limit(
    tower: PlannedLoop, every_plan: list[tuple[ModelSpec, dict[str, str]]]
) -> None:
    # What a plan reserves without a limit decides nothing below it: the allocator releases and tries again there, and
    # may get through under a smaller limit and not under a larger one. This bound falls with the budget.
    needs = [_peak(spec) for spec, _ in every_plan]
    costs = [tower.cost(choice, BATCH, TARGET) for choice in _choices(tower)]
    low, high = min(needs), max(needs)
    for budget in range(low, high + (high - low) // 20, max(1, (high - low) // 20)):
        found = tower.cheapest(BATCH, {**TARGET, "budget": budget})
        assert found is not None
        assert found.recompute_seconds <= min(cost for cost, need in zip(costs, needs, strict=True) if need <= budget)
        assert tower.traced(found).fits(BATCH, **{**TARGET, "budget": budget})
    unlimited = tower.cheapest(BATCH, {**TARGET, "budget": high})
    assert unlimited is not None
    assert unlimited.recompute_seconds == 0


def test_joined_and_traced_plans_are_one(tower: PlannedLoop) -> None:
    case = Case(model="", batch=BATCH)
    for choice in itertools.islice(_choices(tower), 0, None, 11):
        joined, regions = tower.joined(choice)
        one = ours.predict(case, joined)
        other = ours.predict(case, tower.traced_regions(regions, BATCH))
        assert sequences_equal(one.timeline, other.timeline)
        assert one.requested_peak_bytes == other.requested_peak_bytes
        assert one.reserved_peak_bytes == other.reserved_peak_bytes


def test_a_longer_chain_is_searched_as_if_exhaustively() -> None:
    hidden = (256, 1024, 256, 512, 256, 768, 300, 640)
    planned = PlannedLoop(Tower(hidden), SAMPLE, (BATCH,), loop_keywords({"optimizer": "adamw"}))
    plans = sorted((planned.cost(choice, BATCH, TARGET), choice) for choice in _choices(planned))
    kept = planned.kept().estimate(BATCH, **TARGET).reserved_peak.high
    least = planned.smallest_bytes(BATCH, TARGET)
    for share in (0.2, 0.5, 0.8):
        limited = {**TARGET, "budget": int(least + share * (kept - least))}
        cheapest = next(cost for cost, choice in plans if planned.joined(choice)[0].fits(BATCH, **limited))
        found = planned.cheapest(BATCH, limited)
        assert found is not None
        assert found.recompute_seconds == pytest.approx(cheapest)
        assert found.recompute_bound_seconds <= found.recompute_seconds
        assert planned.cheapest(BATCH, limited, plays=len(plans)) == found


def test_a_space_survives_json(tower: PlannedLoop) -> None:
    again = RegionSpace.from_json(tower.space.to_json())
    assert again == tower.space
    limited = {**TARGET, "budget": tower.smallest_bytes(BATCH, TARGET)}
    assert again.cheapest_plan(BATCH, **limited) == tower.space.cheapest_plan(BATCH, **limited)
    with pytest.raises(SpecError):
        RegionSpace.from_json("{}")
