"""Checkpoint plans joined from traces equal CUDA PyTorch with the plan applied; the wide run is `plans.py`."""

from __future__ import annotations

import pytest

from tests.parity.compare import compare
from tests.parity.difference import differences
from tests.parity.plans import plans_of

# What a model's code warns about is not what is tested.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.mark.usefixtures("virtual_gpu")
@pytest.mark.parametrize("reference", ["hf:gpt2", "unet:plain", "tv:swin_t", "tv:vit_b_16"])
def test_every_variant_and_two_mixtures_equal_cuda(reference: str) -> None:
    plans = list(plans_of(reference, random_plans=2))
    assert any(plan.case.regions for plan in plans)
    for plan in plans:
        result = compare(plan.case, plan.joined)
        shown = "\n".join(differences(result.truth.timeline.trimmed(), result.prediction.timeline.trimmed(), 3))
        assert not result.off, f"{plan.case.label()} {plan.name}\n{shown}"


@pytest.mark.usefixtures("virtual_gpu")
def test_segments_of_several_blocks_equal_cuda() -> None:
    plans = [plan for plan in plans_of("tv:resnet50", random_plans=0) if plan.name.startswith("segments")]
    assert plans
    for plan in plans:
        assert any("[" in name for name, _ in plan.case.regions)
        result = compare(plan.case, plan.joined)
        shown = "\n".join(differences(result.truth.timeline.trimmed(), result.prediction.timeline.trimmed(), 3))
        assert not result.off, f"{plan.case.label()} {plan.name}\n{shown}"
