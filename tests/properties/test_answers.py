"""What must hold between answers, whatever is asked."""

from __future__ import annotations

import itertools
import json
import pickle
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumem import ModelSpec
from gpumem.errors import BudgetError, DoesNotFitError

MIB = 1 << 20
# The spec is read only, so examples may share it.
examples = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

BATCHES = st.integers(2, 3000)
GPUS = st.sampled_from([None, "t4", "rtx3090", "a100-80gb", "h100"])
BUDGETS = st.integers(1, 6000 * MIB)
CONTEXTS = st.integers(0, 800 * MIB)
# Settings under which nothing depends on the limit until it is reached: garbage collection looks at it earlier, and an
# expandable segment's range is as long as the device's memory.
_LIMITLESS = (None, "max_split_size_mb:64", "roundup_power2_divisions:4")
LIMITLESS_CONFS = st.sampled_from(_LIMITLESS)
ALLOC_CONFS = st.sampled_from(
    [
        *_LIMITLESS,
        "expandable_segments:True",
        "garbage_collection_threshold:0.6",
        "max_split_size_mb:128,garbage_collection_threshold:0.8",
    ]
)


def _largest(spec: ModelSpec, **setting: Any) -> int:
    """0 where not even one sample fits, or the context alone does not."""
    try:
        return spec.max_batch(**setting)
    except (DoesNotFitError, BudgetError):
        return 0


@examples
@given(batch=BATCHES, gpu=GPUS, context=CONTEXTS, alloc_conf=ALLOC_CONFS)
def test_each_quantity_contains_the_one_before(
    spec: ModelSpec, batch: int, gpu: str | None, context: int, alloc_conf: str | None
) -> None:
    report = spec.estimate(batch, gpu=gpu, context=context, alloc_conf=alloc_conf)
    quantities = [report.requested_peak, report.allocated_peak, report.reserved_peak, report.device_peak]
    for inner, outer in itertools.pairwise(quantities):
        assert inner.low <= outer.low
        assert inner.likely <= outer.likely
        assert inner.high <= outer.high
    for quantity in quantities:
        assert quantity.low <= quantity.likely <= quantity.high
    assert sum(report.breakdown.values()) == report.allocated_peak.likely


@examples
@given(budget=BUDGETS, context=CONTEXTS, alloc_conf=ALLOC_CONFS)
def test_the_largest_batch_fits_and_the_next_does_not(
    spec: ModelSpec, budget: int, context: int, alloc_conf: str | None
) -> None:
    setting: dict[str, Any] = {"budget": budget, "context": context, "alloc_conf": alloc_conf}
    batch = _largest(spec, **setting)
    if batch:
        assert spec.fits(batch, **setting)
        assert spec.estimate(batch, **setting).fits
    if batch or budget > context:
        assert not spec.fits(batch + 1, **setting)


@examples
@given(batch=BATCHES, more=st.integers(0, 500 * MIB), context=CONTEXTS, alloc_conf=LIMITLESS_CONFS)
def test_what_it_reserves_without_a_limit_is_enough(
    spec: ModelSpec, batch: int, more: int, context: int, alloc_conf: str | None
) -> None:
    # With less, cached segments are given back, and then more budget can mean a smaller batch (engine_properties.rs).
    setting: dict[str, Any] = {"context": context, "alloc_conf": alloc_conf}
    needs = spec.estimate(batch, **setting)
    assert spec.fits(batch, budget=needs.device_peak.high + more, **setting)
    assert not spec.fits(batch, budget=context + needs.requested_peak.low - 1, **setting)


@examples
@given(batches=st.tuples(BATCHES, BATCHES))
def test_a_larger_batch_never_requests_less(spec: ModelSpec, batches: tuple[int, int]) -> None:
    small, large = sorted(batches)
    assert spec.estimate(small).requested_peak.likely <= spec.estimate(large).requested_peak.likely


@examples
@given(batch=BATCHES, gpu=GPUS)
def test_copies_answer_the_same(spec: ModelSpec, batch: int, gpu: str | None) -> None:
    for copy in (ModelSpec.from_json(spec.to_json()), pickle.loads(pickle.dumps(spec))):
        assert copy == spec
        assert copy.to_json() == spec.to_json()
        assert copy.estimate(batch, gpu=gpu) == spec.estimate(batch, gpu=gpu)
    report = spec.estimate(batch, gpu=gpu)
    assert json.loads(report.to_json())["batch"] == batch


@examples
@given(batch=BATCHES, alloc_conf=ALLOC_CONFS)
def test_every_row_of_the_timeline_is_consistent(spec: ModelSpec, batch: int, alloc_conf: str | None) -> None:
    live: dict[int, int] = {}
    total = 0
    for kind, number, nbytes, _, _, _, requested, allocated, reserved in spec.timeline(batch, alloc_conf=alloc_conf):
        if kind == 0:
            assert number not in live
            live[number] = nbytes
            total += nbytes
        elif kind == 1:
            total -= live.pop(number)
        assert total == requested <= allocated <= reserved
