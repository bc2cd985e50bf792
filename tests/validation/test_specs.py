"""Real PyTorch on the virtual GPU asks for what was predicted, to the byte."""

from __future__ import annotations

import pytest

import gpumem
from gpumem.checkpointing import fingerprint
from gpumem.validation import Session
from tests.validation import small
from tests.validation.specs import SPECS, Spec, run

# All of them run by `python -m tests.validation.sweep`; these cover every kind of loop in seconds.
_MODELS = ("tv:resnet18", "tv:mobilenet_v3_small", "tv:lraspp", "unet:plain b2", "hf:gpt2 b4 precision=amp-bf16")
_MORE = ("hf:vit b4 mode", "hf:bert b3", "nn:lstm_cell", "nn:mlp", "misc:tied", "misc:frozen", "misc:checkpoint")
SELECTED = [spec for spec in SPECS if not spec.planned and spec.name.startswith((*_MODELS, *_MORE))]


def test_there_are_enough() -> None:
    assert len(SPECS) >= 40
    assert len(SELECTED) >= 16
    assert sum(spec.planned for spec in SPECS) >= 5


@pytest.mark.parametrize("spec", SELECTED, ids=lambda spec: spec.name)
def test_peaks_and_every_request_are_equal(session: Session, spec: Spec) -> None:
    answer = run(session, spec)
    assert answer.verdict == "equal", str(answer)
    assert answer.confirmed
    assert answer.requests.startswith("all ")
    row = answer.difference("requested")
    assert row.low == row.likely == row.high == row.measured == answer.measured.requested_peak_bytes > 0
    assert [step.name for step in answer.measured.steps] == ["setup", "step 1", "step 2", "step 3"]
    assert answer.measured.allocated_peak_bytes >= answer.measured.requested_peak_bytes
    assert answer.measured.reserved_peak_bytes % (2 << 20) == 0


def test_every_step_is_as_the_report_has_it(session: Session) -> None:
    answer = session.validate(small.blocks(), (64,), batch=256, optimizer="adamw")
    phases = answer.predicted.phases
    for number, step in enumerate(answer.measured.steps[1:]):
        rows = [row for row in phases if row["step"] == number and row["phase"] != "setup"]
        assert step.requested_bytes == max(row["requested_bytes"] for row in rows)
        assert step.allocated_bytes == max(row["allocated_bytes"] for row in rows)


def test_a_plan_runs_as_planned(session: Session) -> None:
    model = small.blocks()
    whole = gpumem.estimate(model, (64,), batch=4096, gpu="rtx3090", optimizer="adamw")
    context = whole.to_dict()["context"]["high"]
    budget = context + whole.reserved_peak.high * 6 // 10
    plan = gpumem.plan(model, (64,), batch=4096, budget=budget, gpu="rtx3090", optimizer="adamw")
    assert plan.regions
    answer = session.validate(plan, (64,), model=model)
    assert answer.verdict == "equal", str(answer)
    assert answer.plan == plan
    assert answer.predicted.requested_peak == plan.report.requested_peak
    assert answer.measured.requested_peak_bytes < whole.requested_peak.low
    assert all("forward" not in vars(module) for module in model.modules())
    assert answer.fingerprint == fingerprint(model) == plan.fingerprint
    assert f"{len(plan.regions)} regions checkpointed" in str(answer)


def test_the_model_is_left_as_it_was(session: Session) -> None:
    model = small.Mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert session.validate(model, (64,), batch=8).confirmed
    assert model.training
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and not parameter.is_cuda for parameter in model.parameters())
