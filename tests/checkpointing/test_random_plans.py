"""Any set of regions with any options, nested or not, leaves a step as it is."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gpumem.checkpointing import apply_regions, code
from gpumem.checkpointing.options import REENTRANT
from gpumem.checkpointing.places import has_forward
from tests.checkpointing.compare import AVAILABLE, differences, step
from tests.checkpointing.models import Attending, Convolutional, Inputs

pytest.importorskip("hypothesis", reason="environments of old versions of torch are made without")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_EXACT = [option for option in AVAILABLE if option != REENTRANT]


def _choices(model: nn.Module) -> list[str]:
    """Every module that can be a region, but those that overwrite their own input and those that are never called."""
    overwrites = re.compile(r".*(body\.[24]|last|stem\.2|out_proj)")
    return [name for name, module in model.named_modules() if has_forward(module) and not overwrites.fullmatch(name)]


_MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "convolutional": (Convolutional, (torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8),)),
    "attending": (lambda: Attending(2), (torch.arange(14).reshape(2, 7),)),
}


@pytest.mark.parametrize("name", _MODELS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_step_is_the_same(name: str, data: st.DataObject) -> None:
    make, inputs = _MODELS[name]
    torch.manual_seed(5)
    model = make().train()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    names = data.draw(st.lists(st.sampled_from(_choices(model)), unique=True, max_size=8))
    regions = {region: data.draw(st.sampled_from(_EXACT), label=region) for region in names}
    before = [list(vars(module)) for module in model.modules()]
    plain = step(model, inputs)
    model.load_state_dict(start)
    applied = apply_regions(model, regions)
    assert list(model.state_dict()) == list(start)
    assert differences(plain, step(model, inputs)) == []
    applied.undo()
    assert [list(vars(module)) for module in model.modules()] == before
    model.load_state_dict(start)
    exec(code(regions), {"model": model})
    assert differences(plain, step(model, inputs)) == []


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(range(4), 2)))
def test_runs_of_members(first: int, second: int) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)) for _ in range(4)))
    x = torch.randn(3, 4)
    plain = step(model, (x,))
    for option in AVAILABLE:
        with apply_regions(model, {f"[{first}:{second}]": option, f"[{second}:4]": option, "0[0:2]": option}):
            assert differences(plain, step(model, (x,))) == []
