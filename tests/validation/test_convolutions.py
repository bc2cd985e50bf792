"""What cuDNN tells the estimator is what it tells PyTorch: every request on the virtual GPU, workspaces included."""

from __future__ import annotations

from typing import Any

import pytest

import gpumem
from gpumem.validation import Session
from tests.validation import small

_LOOPS: dict[str, tuple[dict[str, Any], ...]] = {
    "t4": ({"precision": "amp-fp16", "channels_last": True},),
    "rtx3090": ({}, {"precision": "tf32", "channels_last": True}),
    "a100-80gb": ({"precision": "amp-bf16"},),
    "h100": ({"precision": "fp16"}, {"mode": "infer", "precision": "tf32"}),
}


@pytest.mark.usefixtures("virtual_gpu")
@pytest.mark.parametrize("card", list(_LOOPS))
def test_every_request_is_equal(card: str) -> None:
    with Session(f"virtual:{card}", timeout=120) as session:
        for loop in _LOOPS[card]:
            model = small.Convolutions(volumes="channels_last" not in loop)
            answer = session.validate(model, (3, 64, 64), batch=5, **loop)
            assert answer.verdict == "equal", f"{loop}\n{answer}"
            assert answer.requests.startswith("all "), answer.requests
            (said,) = [line for line in answer.predicted.assumptions if line.startswith("convolution workspaces")]
            assert "own answers" in said


@pytest.mark.usefixtures("virtual_gpu")
def test_the_rules_differ_and_their_ends_hold_the_truth() -> None:
    spec = gpumem.extract(small.Convolutions(), (3, 64, 64))
    asked = spec.estimate(64, gpu="rtx3090", context=0, conv_workspaces="cudnn")
    rules = spec.estimate(64, gpu="rtx3090", context=0, conv_workspaces="rules")
    assert asked.requested_peak.low == asked.requested_peak.high
    assert rules.requested_peak.low <= asked.requested_peak.likely <= rules.requested_peak.high
    assert asked != rules
