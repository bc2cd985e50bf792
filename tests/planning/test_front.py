"""The front: each plan gets through within its bytes, and no search for that budget finds a cheaper one."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import gpumem
from gpumem.errors import DoesNotFitError, InputError, PlanError
from gpumem.extraction import TRACED_BATCHES
from gpumem.extraction.keywords import loop_keywords
from gpumem.planning.loops import PlannedLoop
from gpumem.planning.ranking import rank_loops
from tests.planning.models import SAMPLE, Tower

BATCH = 512
LOOP: dict[str, Any] = {"optimizer": "adamw", "gpu": "rtx3090"}


@pytest.fixture(scope="module")
def front() -> gpumem.Front:
    return gpumem.pareto(Tower(), SAMPLE, batch=BATCH, **LOOP)


def test_each_plan_fits_and_is_the_best_of_its_budget(front: gpumem.Front) -> None:
    assert len(front) >= 3
    assert front[0].regions
    assert not front[-1].regions
    for point, following in zip(front, [*front][1:], strict=False):
        assert point.device_bytes < following.device_bytes
        assert point.recompute_seconds > following.recompute_seconds
    for point in front:
        plan = gpumem.plan(Tower(), SAMPLE, batch=BATCH, budget=point.device_bytes, **LOOP)
        assert plan.recompute_seconds == pytest.approx(point.recompute_seconds)
        assert plan.step_seconds == pytest.approx(point.step_seconds)


def test_within_and_forms(front: gpumem.Front) -> None:
    assert front.within(front[2].device_bytes) == front[2]
    assert front.within("1TB") == front[-1]
    with pytest.raises(DoesNotFitError) as raised:
        front.within(front[0].device_bytes - 1)
    assert raised.value.smallest_bytes == front[0].device_bytes
    assert gpumem.Front.from_json(front.to_json()) == pickle.loads(pickle.dumps(front)) == front
    assert "none better in both" in str(front)
    for text in ("", "{}", front.to_json().replace('"schema": 1', '"schema": 2')):
        with pytest.raises(PlanError):
            gpumem.Front.from_json(text)


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"batch": 0}, InputError),
        ({"batch": 8, "points": 1}, InputError),
        ({"batch": 8, "points": 2.0}, InputError),
        ({"batch": 8, "budget": "2GB"}, InputError),
        ({"batch": 8, "mode": "infer"}, PlanError),
    ],
)
def test_what_cannot_be_meant(keywords: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        gpumem.pareto(Tower(), SAMPLE, **keywords)


def test_a_ranking_is_true_of_every_combination() -> None:
    loops = [
        PlannedLoop(Tower(), SAMPLE, TRACED_BATCHES, loop_keywords({**LOOP, "precision": name}), parts=False)
        for name in ("fp32", "amp-bf16")
    ]
    target = {"gpu": "rtx3090", "budget": "1GB"}
    ranking = rank_loops(loops, [32, 64, 128, 200], target)
    assert len(ranking) == 2 * 2**5 * 4
    combinations = set(zip(ranking.batch.tolist(), ranking.precision.tolist(), ranking.plan.tolist(), strict=True))
    assert len(combinations) == len(ranking)
    possible = ranking.samples_per_second[ranking.may_fit]
    assert np.all(np.diff(possible) <= 0)
    assert 0 < len(possible) < len(ranking)
    fastest = 0.0
    for row in range(len(ranking)):
        spec = loops[ranking.precision[row]].space.splice(ranking.plans[ranking.plan[row]].tolist())
        batch = int(ranking.batch[row])
        report = spec.estimate(batch, **target)
        assert ranking.requested_bytes[row] == report.requested_peak.high
        assert ranking.may_fit[row] or not report.fits
        if report.fits:
            fastest = max(fastest, float(ranking.samples_per_second[row]))
    best = max(ranking.best, key=lambda one: one.choice.samples_per_second)
    # The search plays whole chains: what it finds is the best of all that fit.
    assert best.choice.samples_per_second == pytest.approx(fastest)
    assert ranking.undecided_before_best == np.count_nonzero(possible > fastest * (1 + 1e-9))
