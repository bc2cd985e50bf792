"""A plan changes no output, no gradient, no running statistic and no random number: bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from gpumem.checkpointing import apply_regions
from gpumem.checkpointing.options import CHECKPOINT, REENTRANT
from tests.checkpointing.compare import AVAILABLE, effect, saved_bytes, step
from tests.checkpointing.models import CASES, Attending, Convolutional


@pytest.mark.parametrize("option", AVAILABLE)
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_same(name: str, option: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    # A reentrant region's first run records no gradients, for which the CPU has another LSTM kernel.
    exact = (name, option) != ("recurrent", REENTRANT)
    assert effect(case.make, case.inputs(), dict.fromkeys(case.regions, option), exact=exact) == []


@pytest.mark.parametrize("option", [option for option in AVAILABLE if option != REENTRANT])
@pytest.mark.parametrize("name", [name for name in CASES if name != "recurrent"])  # oneDNN has no bf16 LSTM everywhere.
def test_a_step_under_autocast_is_the_same(name: str, option: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    assert effect(case.make, case.inputs(), dict.fromkeys(case.regions, option), autocast=True) == []


@pytest.mark.parametrize("option", AVAILABLE)
def test_a_model_that_is_called_twice_has_a_region_per_call(option: str) -> None:
    case = CASES["convolutional"]
    torch.manual_seed(0)
    assert effect(case.make, case.inputs(), dict.fromkeys(case.regions, option), calls=2) == []


@pytest.mark.parametrize(("outer", "inner"), list(itertools.product(AVAILABLE, AVAILABLE)))
def test_regions_in_regions(outer: str, inner: str) -> None:
    tokens = (torch.randint(0, 40, (2, 7)),)
    assert effect(Attending, tokens, {"layers.1": outer, "layers.1.self_attn": inner}) == []
    image = (torch.randn(2, 3, 8, 8),)
    regions = {"blocks.1": outer, "blocks.1.body": inner, "blocks.2": inner, "blocks.2.body[0:3]": outer}
    assert effect(Convolutional, image, regions) == []


@pytest.mark.parametrize("option", AVAILABLE)
def test_the_whole_model_and_three_levels(option: str) -> None:
    image = (torch.randn(2, 3, 8, 8),)
    regions = {"": option, "blocks.1": CHECKPOINT, "blocks.1.body": option, "blocks.1.body[3:5]": CHECKPOINT}
    assert effect(Convolutional, image, regions) == []


def test_the_comparison_sees_dropout_that_is_drawn_anew() -> None:
    torch.manual_seed(0)
    model, inputs = Convolutional(), CASES["convolutional"].inputs()
    first = step(model, inputs)
    # Without the random state the dropout of the second run is another one.
    with apply_regions(model, {"head": CHECKPOINT}, preserve_rng_state=False):
        second = step(model, inputs)
    assert not torch.equal(first.gradients["head.2.weight"], second.gradients["head.2.weight"])


@pytest.mark.parametrize("option", AVAILABLE)
@pytest.mark.parametrize("name", ["convolutional", "sequence", "attending"])
def test_less_is_saved(name: str, option: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    model = case.make().train()
    before = saved_bytes(model, inputs)
    with apply_regions(model, dict.fromkeys(case.regions, option)):
        assert saved_bytes(model, inputs) < before
