"""Several regions in a row checkpointed as one: which there are, joined as traced, and chosen where they help."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from gpumem.checkpointing import called_one_by_one, candidate_regions, candidate_segments
from gpumem.errors import SpecError
from gpumem.extraction.keywords import loop_keywords
from gpumem.planning.loops import PlannedLoop
from tests.parity import ours
from tests.parity.case import Case
from tests.parity.difference import sequences_equal
from tests.planning.conftest import BATCH
from tests.planning.models import Tower

TARGET: dict[str, Any] = {"gpu": "rtx3090", "context": 0}
BLOCKS = 12
# Activations of 16 MiB: with smaller ones, segments of the allocator hide what a plan saves.
SAMPLE = (1024, 64)


class _Chain(Tower):
    """The tower with its blocks in a sequence, so that one call runs several."""

    def __init__(self, hidden: tuple[int, ...]) -> None:
        super().__init__(hidden)
        self.add_module("blocks", nn.Sequential(*self.blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.blocks(x).mean(dim=1))
        return out


@pytest.fixture(scope="module")
def chain() -> PlannedLoop:
    return PlannedLoop(_Chain((64,) * BLOCKS), SAMPLE, (BATCH,), loop_keywords({"optimizer": "adamw"}))


def _segments(planned: PlannedLoop) -> list[tuple[int, range]]:
    """Each traced segment and its variant."""
    found = []
    for number, name in enumerate(planned.variant_names):
        for region in range(planned.places):
            segment = planned.segment(region, number)
            if name.startswith("segments") and segment[0] == region and len(segment) > 1:
                found.append((number, segment))
    return found


def test_blocks_that_a_loop_calls_are_no_segment_and_the_plan_says_so(chain: PlannedLoop) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList(nn.Sequential(Tower((64,) * 2), Tower((64,) * 2)) for _ in range(2))

    def apart(model: nn.Module) -> list[str]:
        return called_one_by_one(model, [region.name for region in candidate_regions(model)])

    assert apart(Tower()) == ["blocks"]
    assert apart(_Chain((64,) * 4)) == []
    assert apart(nn.Sequential(Tower(), Tower())) == ["0.blocks", "1.blocks"]
    assert "stages" in apart(Nested())
    planned = PlannedLoop(Tower(), (16, 64), (2,), loop_keywords({"optimizer": "sgd"}))
    assert [note for note in planned.notes if "blocks as one segment" in note]
    assert not [note for note in chain.notes if "as one segment" in note]


def test_segments_are_runs_of_a_sequence_and_modules_around_blocks() -> None:
    def named(model: nn.Module) -> dict[str, tuple[int, int]]:
        return candidate_segments(model, [region.name for region in candidate_regions(model)])

    rows = named(_Chain((256,) * 4))
    assert rows == {
        "blocks[0:2]": (0, 2),
        "blocks[0:3]": (0, 3),
        "blocks": (0, 4),
        "blocks[1:3]": (1, 2),
        "blocks[1:4]": (1, 3),
        "blocks[2:4]": (2, 2),
    }
    # The model calls the members of a list itself.
    assert not named(Tower((256,) * 4))


def test_of_many_blocks_only_the_shorter_runs_are_candidates() -> None:
    regions = [f"blocks.{number}" for number in range(40)]
    rows = candidate_segments(_Chain((64,) * 40), regions)
    assert max(count for name, (_, count) in rows.items() if name != "blocks") == 16
    assert rows["blocks"] == (0, 40)


def test_plans_with_segments_join_as_they_run(chain: PlannedLoop) -> None:
    segments = _segments(chain)
    assert segments
    case = Case(model="", batch=BATCH)
    for variant, segment in segments:
        for others in (0, 1):
            choice = [variant if region in segment else others for region in range(chain.places)]
            joined, regions = chain.joined(choice)
            one = ours.predict(case, joined)
            other = ours.predict(case, chain.traced_regions(regions, BATCH))
            assert sequences_equal(one.timeline, other.timeline), regions
            assert one.requested_peak_bytes == other.requested_peak_bytes
            assert one.reserved_peak_bytes == other.reserved_peak_bytes


def test_a_segment_is_chosen_as_a_whole_or_not_at_all(chain: PlannedLoop) -> None:
    variant, segment = _segments(chain)[0]
    choice = [0] * chain.places
    choice[segment[0]] = variant
    assert chain.possible(choice) == [0] * chain.places
    with pytest.raises(SpecError, match="as one"):
        chain.space.splice(choice)


def test_segments_reach_lower_than_single_blocks(chain: PlannedLoop) -> None:
    loop = loop_keywords({"optimizer": "adamw"})
    single = PlannedLoop(_Chain((64,) * BLOCKS), SAMPLE, (BATCH,), loop, parts=False)
    least = chain.smallest_bytes(BATCH, TARGET)
    assert least < single.smallest_bytes(BATCH, TARGET)
    found = chain.cheapest(BATCH, {**TARGET, "budget": least})
    assert found is not None
    assert any(name.endswith("]") for name in found.regions)
    assert chain.traced(found).fits(BATCH, **{**TARGET, "budget": least})
    assert single.cheapest(BATCH, {**TARGET, "budget": least}) is None


def test_a_space_with_segments_survives_json(chain: PlannedLoop) -> None:
    assert type(chain.space).from_json(chain.space.to_json()) == chain.space


def test_what_a_block_leaves_and_needs_does_not_depend_on_the_segments_beside_it() -> None:
    # Gradients that one block's backward pass hands to the next were taken for what the block left, where segments are.
    with torch.device("meta"):
        model = torchvision.models.resnet50()
    options = loop_keywords({"optimizer": "sgd"})
    alone, beside = (
        PlannedLoop(model, (3, 224, 224), (64,), options, parts=parts).space.chain_ways(64, gpu="rtx3090")
        for parts in (False, True)
    )
    assert any(count > 1 for ways in beside[0] for _, _, count, *_ in ways)
    singles = [[way for way in ways if way[1] in (0, 1)] for ways in beside[0]]
    assert singles == alone[0]
    assert beside[1] == alone[1]
