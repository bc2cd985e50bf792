"""What modules change in their forward pass is changed once, as without a plan."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gpumem.checkpointing import apply_regions
from gpumem.checkpointing.options import CHECKPOINT, REENTRANT
from tests.checkpointing.compare import AVAILABLE, differences, effect, step
from tests.checkpointing.models import Convolutional


def _old_spectral_norm() -> nn.Module:
    return nn.utils.spectral_norm(nn.Linear(6, 6))


def _spectral_norm() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))


STATEFUL: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(6),
    "cumulative batch norm": lambda: nn.BatchNorm1d(6, momentum=None),
    "untracked batch norm": lambda: nn.BatchNorm1d(6, track_running_stats=False),
    "half frozen batch norm": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6).eval()),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
    ),
    "spectral norm": _spectral_norm,
    "spectral norm as a hook": _old_spectral_norm,
}


@pytest.mark.parametrize("option", AVAILABLE)
@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("name", STATEFUL)
def test_state_changes_once(name: str, calls: int, option: str) -> None:
    def make() -> nn.Module:
        body = nn.Sequential(nn.Linear(6, 6), STATEFUL[name](), nn.Tanh())
        model = nn.Sequential(nn.Linear(6, 6), body, nn.Linear(6, 2))
        for module in model.modules():
            if type(module) is nn.Sequential and len(module) == 2:
                module[1].eval()
        return model

    # Exactly as often as there are calls: each sees the state that the one before left. The sum of the gradients of
    # three calls is added up in another order where autograd is reentrant.
    exact = option != REENTRANT or calls == 1
    assert effect(make, (torch.randn(10, 6),), {"1": option}, calls=calls, exact=exact) == []


def test_without_care_the_statistics_would_be_updated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpumem.checkpointing.state.KeptState.__enter__", lambda self: None)
    monkeypatch.setattr("gpumem.checkpointing.state.KeptState.__exit__", lambda self, *error: None)
    found = effect(Convolutional, (torch.randn(2, 3, 8, 8),), {"blocks.1": CHECKPOINT})
    assert "buffer blocks.1.body.1.running_mean" in found
    assert "buffer blocks.1.body.1.num_batches_tracked" in found


def test_settings_are_back_after_the_step() -> None:
    model = Convolutional()
    before = [copy.copy(vars(module)) for module in model.modules()]
    buffers = [dict(module._buffers) for module in model.modules()]
    with apply_regions(model, {"blocks.1": AVAILABLE[-1], "blocks.2": CHECKPOINT}):
        step(model, (torch.randn(2, 3, 8, 8),))
    assert [vars(module) for module in model.modules()] == before
    for module, earlier in zip(model.modules(), buffers, strict=True):
        assert {name: id(buffer) for name, buffer in module._buffers.items()} == {
            name: id(buffer) for name, buffer in earlier.items()
        }


class _Counting(nn.Module):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x).tanh()  # type: ignore[no-any-return]


def test_a_buffer_that_is_changed_twice_is_named_once() -> None:
    counting = _Counting()
    model = nn.Sequential(counting, nn.Linear(4, 2))
    x = torch.randn(3, 4)
    with apply_regions(model, {"0": CHECKPOINT}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        step(model, (x,))
        step(model, (x,))
    said = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert len(said) == 1
    assert "region '0' changes the buffer _Counting.calls" in said[0]
    assert counting.calls.item() == 4


def test_a_trained_model_stays_the_same_over_steps() -> None:
    torch.manual_seed(0)
    plain = Convolutional()
    planned = copy.deepcopy(plain)
    x = (torch.randn(2, 3, 8, 8),)
    outcomes = []
    for model, regions in ((plain, {}), (planned, {"stem": CHECKPOINT, "blocks.0": CHECKPOINT, "head": CHECKPOINT})):
        optimizer = torch.optim.AdamW(model.parameters())
        with apply_regions(model, regions):
            for _ in range(4):
                outcome = step(model, x)
                optimizer.step()
        outcomes.append(outcome)
    assert differences(*outcomes) == []
