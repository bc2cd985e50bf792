"""What bytes are for, in the reference loop and in a user's own step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

import gpumem


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Any:
    inputs, target = batch
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), target)
    loss.backward()
    optimizer.step()
    return loss


def test_a_users_step_keeps_activations_as_the_reference_loop_does() -> None:
    reference = gpumem.estimate(_model(), (64,), batch=512, optimizer="adamw").breakdown
    own = gpumem.estimate(_model(), (64,), batch=512, optimizer="adamw", step=_step, target=((), torch.int64)).breakdown

    assert own["activation"] > 0.9 * reference["activation"] > 0
    for category in ("param", "optimizer", "input"):
        assert own[category] == reference[category], category
