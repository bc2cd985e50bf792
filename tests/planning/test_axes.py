"""Axes that the caller opens: what is chosen, and what contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import gpumem
from gpumem.errors import DoesNotFitError, GpumemError, InputError, PlanError, UnknownNameError
from gpumem.extraction.keywords import loop_keywords
from gpumem.planning.axes import Axes
from gpumem.planning.loops import PlannedLoop
from tests.planning.conftest import BATCH
from tests.planning.models import SAMPLE, Tower

LOOP: dict[str, Any] = {"batch": BATCH, "gpu": "rtx3090", "context": 0, "optimizer": "adamw"}
HIDDEN = (2048, 2048)


def _plan(budget: int | str, **more: Any) -> gpumem.Plan:
    return gpumem.plan(Tower(HIDDEN), SAMPLE, budget=budget, **{**LOOP, **more})


def test_a_step_in_the_backward_pass_fits_where_no_other_does() -> None:
    needs = {
        in_backward: int(
            gpumem.estimate(Tower(HIDDEN), SAMPLE, **{**LOOP, "batch": 1}, step_in_backward=in_backward).reserved_peak
        )
        for in_backward in (False, True)
    }
    assert needs[True] < needs[False]
    plan = _plan("2GB", choose={"step_in_backward": (False, True)})
    # Both fit: the first.
    assert not plan.step_in_backward
    plan = _plan("2GB", choose={"step_in_backward": (True,)})
    assert plan.step_in_backward
    assert "optimizer of its own" in str(plan)
    assert "register_post_accumulate_grad_hook" in plan.code()
    compile(plan.code(), "plan", "exec")
    assert gpumem.Plan.from_json(plan.to_json()) == plan


def test_offload_is_chosen_where_checkpoints_do_not_reach() -> None:
    tower = Tower((2048,) * 6)
    limit = {"gpu": "rtx3090", "context": 0}
    planned = PlannedLoop(tower, SAMPLE, (BATCH,), loop_keywords({"optimizer": "adamw"}))
    offloading = PlannedLoop(tower, SAMPLE, (BATCH,), loop_keywords({"optimizer": "adamw"}), offload=True)
    needs = [one.smallest_bytes(BATCH, limit) for one in (offloading, planned)]
    # The smallest that was seen is no bound, so halfway.
    tight = sum(needs) // 2
    with pytest.raises(DoesNotFitError):
        gpumem.plan(tower, SAMPLE, budget=tight, **LOOP)
    plan = gpumem.plan(tower, SAMPLE, budget=tight, offload=True, **LOOP)
    assert "offload" in plan.regions.values()
    assert plan.report.fits


@pytest.mark.parametrize(
    ("axes", "error", "words"),
    [
        ({"choose": {"colour": ("red",)}}, UnknownNameError, "colour"),
        ({"choose": {"zero_grad": ()}}, InputError, "nothing to choose"),
        ({"choose": {"zero_grad": ("never",)}}, UnknownNameError, "never"),
        ({"choose": {"step_in_backward": (True,), "zero_grad": ("zero",)}}, InputError, "contradict"),
        ({"choose": {"step_in_backward": (True,)}, "precision": ("amp-fp16", "amp-fp16")}, PlanError, "no loop"),
        ({"offload": "yes"}, InputError, "offload"),
        ({"precision": ()}, InputError, "precision"),
    ],
)
def test_axes_that_cannot_be_meant(axes: dict[str, Any], error: type[GpumemError], words: str) -> None:
    with pytest.raises(error, match=words):
        _plan("1GB", **axes)


def test_combinations_that_contradict_themselves_are_passed_over() -> None:
    choices: Mapping[str, tuple[Any, ...]] = {"step_in_backward": (True, False), "zero_grad": ("zero", "none")}
    axes = Axes(batch=1, global_batch=None, objective="throughput", precisions=("fp32",), choices=choices)
    options = {
        "mode": "train",
        "accumulate": 1,
        "clip_grad_norm": None,
        "step": None,
        "criterion": None,
        "host_reads": "error",
    }
    found = [(one["step_in_backward"], one["zero_grad"]) for one in axes.loops(options)]
    assert found == [(True, "none"), (False, "zero"), (False, "none")]


def test_a_prime_global_batch_is_told_of_its_neighbours() -> None:
    from gpumem.planning.search import _more_divisible

    assert "global_batch=126 would run in micro-batches of 63" in _more_divisible(127, 1, 100)[0]
    assert not _more_divisible(128, 64, 100)
    assert not _more_divisible(127, 127, 200)
