"""Applying touches the chosen modules' `forward` and nothing else; undoing is the identity."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from gpumem.checkpointing import applied_regions, apply_regions, undo_regions
from gpumem.checkpointing.options import CHECKPOINT
from gpumem.errors import RegionError, UnknownNameError
from tests.checkpointing.compare import AVAILABLE, differences, step
from tests.checkpointing.models import CASES, Attending, Convolutional

REGIONS = {"blocks.1": CHECKPOINT, "blocks.2.body": CHECKPOINT, "blocks.3.body[0:3]": CHECKPOINT}


def _attributes(model: nn.Module) -> list[tuple[str, type, list[tuple[str, int]]]]:
    return [
        (path, type(module), [(key, id(value)) for key, value in vars(module).items()])
        for path, module in model.named_modules()
    ]


def _names(model: nn.Module) -> tuple[list[str], list[str], list[str], list[str]]:
    return (
        list(model.state_dict()),
        [name for name, _ in model.named_modules()],
        [name for name, _ in model.named_parameters()],
        [name for name, _ in model.named_buffers()],
    )


@pytest.mark.parametrize("name", CASES)
def test_names_stay_and_undo_is_the_identity(name: str) -> None:
    case = CASES[name]
    model = case.make()
    attributes, names = _attributes(model), _names(model)
    applied = apply_regions(model, dict.fromkeys(case.regions, CHECKPOINT))
    assert _names(model) == names
    assert _attributes(model) != attributes
    step(model, case.inputs())
    applied.undo()
    assert _attributes(model) == attributes
    undo_regions(model)
    assert _attributes(model) == attributes


def test_what_is_applied_can_be_asked() -> None:
    model = Convolutional()
    applied = apply_regions(model, REGIONS)
    assert applied_regions(model) == applied.regions == REGIONS
    applied.undo()
    assert applied_regions(model) == {}


def test_as_a_context_it_ends() -> None:
    model = Convolutional()
    with apply_regions(model, REGIONS) as planned:
        assert planned is model
        assert applied_regions(model)
    assert not applied_regions(model)


def test_signature_stays() -> None:
    model = Attending()
    before = inspect.signature(model.layers[0].forward)
    with apply_regions(model, {"layers.0": CHECKPOINT}):
        assert inspect.signature(model.layers[0].forward) == before


class _Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.outer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x))  # type: ignore[no-any-return]


def test_a_forward_patched_before_is_run_and_put_back() -> None:
    model = _Calls()
    original: Any = model.inner.forward

    def patched(x: torch.Tensor) -> torch.Tensor:
        return original(2 * x)  # type: ignore[no-any-return]

    model.inner.forward = patched  # type: ignore[method-assign]
    x = torch.randn(3, 4)
    expected = step(model, (x,))
    with apply_regions(model, {"inner": CHECKPOINT}):
        assert differences(expected, step(model, (x,))) == []
    assert model.inner.__dict__["forward"] is patched


def test_a_forward_patched_after_is_not_thrown_away() -> None:
    model = _Calls()
    apply_regions(model, {"inner": CHECKPOINT, "outer": CHECKPOINT})
    planned: Any = model.inner.forward

    def later(x: torch.Tensor) -> torch.Tensor:
        return planned(x)  # type: ignore[no-any-return]

    later.__wrapped__ = planned  # type: ignore[attr-defined]
    model.inner.forward = later  # type: ignore[method-assign]
    with pytest.raises(RegionError, match="forward of 'inner' was patched after"):
        undo_regions(model)
    assert applied_regions(model) == {"outer": CHECKPOINT}
    model.inner.__dict__["forward"] = planned
    undo_regions(model)
    assert not applied_regions(model)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@pytest.mark.parametrize("name", ["convolutional", "sequence", "attending"])
def test_a_copy_has_the_plan_and_its_own_modules(name: str, way: str) -> None:
    case = CASES[name]
    inputs = case.inputs()
    model = case.make()
    regions = dict.fromkeys(case.regions, CHECKPOINT)
    applied = apply_regions(model, regions)
    twin = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert applied_regions(twin) == applied.regions
    expected = step(model, inputs)
    own = {id(module) for module in twin.modules()}
    for module in twin.modules():
        forward: Any = vars(module).get("forward")
        assert forward is None or id(forward.module) in own
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert not [name for name in differences(expected, step(twin, inputs)) if name.startswith(("gradient", "output"))]
    undo_regions(twin)
    assert applied_regions(model) == applied.regions


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ({"blocks.1": CHECKPOINT, "block.2": CHECKPOINT}, "has no module 'block.2'"),
        ({"blocks.1": CHECKPOINT, "blocks": CHECKPOINT}, r"'blocks' \(ModuleList\) has no forward"),
        ({"blocks.1": CHECKPOINT, "blocks[0:2]": CHECKPOINT}, "is not an nn.Sequential"),
        ({"blocks.1": CHECKPOINT, "stem[1:9]": CHECKPOINT}, "'stem' has 3, counted from 0"),
        ({"blocks.1": CHECKPOINT, "stem[2:2]": CHECKPOINT}, "is no run of members"),
        ({"stem[0:2]": CHECKPOINT, "stem[1:3]": CHECKPOINT}, "overlap"),
        ({"blocks.1": CHECKPOINT, 3: CHECKPOINT}, "named by a module path, not by 3"),
    ],
)
def test_a_wrong_region_is_named_and_nothing_is_done(regions: Any, message: str) -> None:
    model = Convolutional()
    before = _attributes(model)
    with pytest.raises(RegionError, match=message):
        apply_regions(model, regions)
    assert _attributes(model) == before


def test_hints_have_the_nearest_names() -> None:
    model = Convolutional()
    with pytest.raises(RegionError) as no_module:
        apply_regions(model, {"blocks.7": CHECKPOINT})
    assert "blocks.0" in no_module.value.hint or "blocks.3" in no_module.value.hint
    with pytest.raises(RegionError) as container:
        apply_regions(model, {"blocks": CHECKPOINT})
    assert "blocks.0, blocks.1" in container.value.hint
    with pytest.raises(UnknownNameError, match="'chekpoint'") as option:
        apply_regions(model, {"blocks.0": "chekpoint"})
    assert CHECKPOINT in option.value.hint


def test_a_second_plan_is_refused() -> None:
    model = Convolutional()
    apply_regions(model, {"stem": CHECKPOINT})
    with pytest.raises(RegionError, match="has 1 regions applied already, the first is 'stem'"):
        apply_regions(model, {"blocks.1": CHECKPOINT})
    assert applied_regions(model) == {"stem": CHECKPOINT}


def test_wrapped_models_are_refused() -> None:
    with pytest.raises(RegionError, match="wrapped already"):
        apply_regions(nn.DataParallel(Convolutional()), {"stem": CHECKPOINT})
    compiled: Any = torch.compile(Convolutional(), backend="eager")
    with pytest.raises(RegionError, match="wrapped already"):
        apply_regions(compiled, {"stem": CHECKPOINT})


def test_selective_options_without_torch_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.checkpointing.apply.selective_contexts_exist", lambda: False)
    model = Convolutional()
    with pytest.raises(RegionError, match=r"region 'blocks.1' keeps the outputs of some operations"):
        apply_regions(model, {"stem": CHECKPOINT, "blocks.1": "save:matmul"})
    assert not applied_regions(model)


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("option", AVAILABLE)
def test_a_module_in_two_places_is_one_region(option: str) -> None:
    model, x = _Shared(), torch.randn(3, 4)
    before, expected = _attributes(model), step(model, (x,))
    with apply_regions(model, {"first": option, "second": option}):
        assert differences(expected, step(model, (x,))) == []
    assert _attributes(model) == before
    with pytest.raises(RegionError, match="'first' and 'second' are the same module"):
        apply_regions(model, {"first": CHECKPOINT, "second": "reentrant"})
