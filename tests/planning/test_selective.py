"""Regions that keep the outputs of some operations: offered where they can run, chosen, applied, and said."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils import _pytree as pytree

import gpumem
from gpumem.checkpointing import apply_regions, candidate_regions
from gpumem.checkpointing.options import SAVED_OPS
from gpumem.extraction.keywords import loop_keywords
from gpumem.planning.loops import PlannedLoop
from gpumem.planning.variants import keeps_nothing, variants_of
from tests.planning.models import WIDTH, Decoder, Overwriting, Tower

BATCH = 32
SAMPLE = (512, WIDTH)
LIMIT: dict[str, Any] = {"gpu": "a100-80gb", "context": 0}
LOOP: dict[str, Any] = {"precision": "bf16", "optimizer": "sgd"}


def _planned(*, parts: bool = True) -> PlannedLoop:
    with torch.device("meta"):
        model = Decoder()
    return PlannedLoop(model, SAMPLE, (BATCH,), loop_keywords(LOOP), parts=parts)


def test_selective_ways_are_offered_where_there_is_something_to_keep() -> None:
    planned = _planned()
    assert set(SAVED_OPS) <= set(planned.variant_names)
    tower = variants_of(candidate_regions(Tower()).regions, selective=True).variants
    ops = ["aten.addmm.default", "aten.gelu.default"]
    assert [way.name for way in tower if not keeps_nothing(way, ops)] == ["keep", "checkpoint", "save:matmul"]


def test_regions_that_write_in_place_are_not_among_them() -> None:
    regions = candidate_regions(Overwriting((True, False))).regions
    assert [region.in_place for region in regions] == [True, False]
    ways = {way.name: way for way in variants_of(regions, selective=True).variants}
    assert list(ways["save:matmul"].applied) == ["blocks.1"]
    all_in_place = candidate_regions(Overwriting((True, True))).regions
    assert not {way.name for way in variants_of(all_in_place, selective=True).variants} & set(SAVED_OPS)


def test_a_selective_plan_is_found_where_it_recomputes_less_and_does_what_it_says() -> None:
    planned = _planned()
    whole = planned.variant_names.index("save:matmul")
    budget = planned.joined([whole] * planned.places)[0].estimate(BATCH, **LIMIT).reserved_peak.high
    found = planned.cheapest(BATCH, {**LIMIT, "budget": budget})
    assert found is not None
    assert set(found.regions.values()) & set(SAVED_OPS)
    without = _planned(parts=False).cheapest(BATCH, {**LIMIT, "budget": budget})
    assert without is None or found.recompute_seconds < without.recompute_seconds
    plan = gpumem.plan(Decoder(), SAMPLE, batch=BATCH, budget=budget, **LOOP, **LIMIT)
    assert plan.report.fits
    option = next(option for option in plan.regions.values() if option in SAVED_OPS)
    assert f"({option})" in str(plan)
    assert "create_selective_checkpoint_contexts" in plan.code()


def test_selective_regions_warn_of_nothing() -> None:
    model = Tower()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = PlannedLoop(model, (16, 64), (2,), loop_keywords({}))
        assert "save:matmul" in spec.variant_names
        with apply_regions(model, dict.fromkeys(("blocks.0", "blocks.1"), "save:matmul")):
            model(torch.randn(2, 16, 64)).sum().backward()
    assert not [leaf for leaf in pytree.tree_leaves([p.grad for p in model.parameters()]) if leaf is None]
