"""A wrong prediction is caught, and what is wrong with it is said."""

from __future__ import annotations

import json

import pytest

import gpumem
from gpumem import Report
from gpumem.errors import InputError, ModelMismatchError, UnknownNameError
from gpumem.validation import Session
from tests.validation import small


def _changed(report: Report, **more: int) -> Report:
    """The report with peaks that differ by some bytes."""
    fields = report.to_dict()
    for name, by in more.items():
        fields[name] = {end: size + by for end, size in fields[name].items()}
    return Report.from_json(json.dumps(fields))


def test_the_report_itself_is_confirmed(session: Session) -> None:
    report = gpumem.estimate(small.Mlp(), (64,), batch=32, gpu="rtx3090", optimizer="adamw", library_workspaces=False)
    answer = session.validate(report, (64,), model=small.Mlp())
    assert (answer.verdict, answer.predicted) == ("equal", report)


@pytest.mark.parametrize("quantity", ["requested_peak", "allocated_peak", "reserved_peak"])
@pytest.mark.parametrize("by", [-4, 512])
def test_some_bytes_more_or_less_are_noticed(session: Session, quantity: str, by: int) -> None:
    report = gpumem.estimate(small.Mlp(), (64,), batch=32, gpu="rtx3090", library_workspaces=False)
    answer = session.validate(_changed(report, **{quantity: by}), (64,), model=small.Mlp())
    assert (answer.verdict, answer.confirmed, answer.ran) == ("outside", False, True)
    name = quantity.removesuffix("_peak")
    assert answer.difference(name).difference_bytes == -by
    assert [row.quantity for row in answer.differences if row.status == "outside"] == [name]
    assert str(answer).count("Not confirmed: it ran; predicted and measured: outside") == 1


def test_a_prediction_for_another_loop_is_noticed(session: Session) -> None:
    report = gpumem.estimate(small.Mlp(), (64,), batch=32, gpu="rtx3090", optimizer="sgd")
    answer = session.validate(report, (64,), model=small.Mlp(), optimizer="adamw")
    assert answer.verdict == "outside"
    assert any("pass all keywords" in note for note in answer.notes)


def test_a_prediction_for_another_card_is_named(session: Session) -> None:
    report = gpumem.estimate(small.Mlp(), (64,), batch=32, gpu="t4")
    answer = session.validate(report, (64,), model=small.Mlp())
    assert any("the prediction was made for gpu t4 (here rtx3090)" in note for note in answer.notes)


def test_memory_that_the_trace_does_not_see_has_its_place(session: Session) -> None:
    answer = session.validate(small.Mlp(small.hold), (64,), batch=32)
    assert (answer.verdict, answer.confirmed) == ("outside", False)
    assert "requests differ from the predicted" in answer.difference("requested").cause
    assert answer.difference("requested").difference_bytes > 0


def test_a_plan_for_another_model_is_refused(session: Session) -> None:
    plan = gpumem.plan(small.blocks(), (64,), batch=16, budget="2GB", gpu="rtx3090")
    with pytest.raises(ModelMismatchError, match="made for another model"):
        session.validate(plan, (64,), model=small.Mlp())
    with pytest.raises(InputError, match="a plan does not hold its model"):
        session.validate(plan)
    with pytest.raises(InputError, match="batch=17, and the prediction is for batch=16"):
        session.validate(plan, (64,), model=small.blocks(), batch=17)
    with pytest.raises(InputError, match="precision='bf16', and the plan has 'fp32'"):
        session.validate(plan, (64,), model=small.blocks(), precision="bf16")


def test_arguments_that_cannot_be_meant() -> None:
    model = small.Mlp()
    with pytest.raises(InputError, match="not said where to run"):
        gpumem.validate(model, (64,), batch=2)
    with pytest.raises(InputError, match="on='cpu' is no device"):
        gpumem.validate(model, (64,), batch=2, on="cpu")
    with pytest.raises(UnknownNameError, match="rtx3091"):
        gpumem.validate(model, (64,), batch=2, on="virtual:rtx3091")
    with pytest.raises(InputError, match="timeout"):
        gpumem.validate(model, (64,), batch=2, on="virtual:t4", timeout=0)
    with pytest.raises(InputError, match="stack= is for estimates"):
        gpumem.validate(model, (64,), batch=2, on="virtual:t4", stack="torch-2.6")
    with pytest.raises(InputError, match="for virtual devices"):
        gpumem.validate(model, (64,), batch=2, on="cuda:0", library_workspaces=False)


def test_a_batch_is_needed(session: Session) -> None:
    with pytest.raises(InputError, match="a batch size is needed"):
        session.validate(small.Mlp(), (64,))
    with pytest.raises(InputError, match="batch must be a positive integer"):
        session.validate(small.Mlp(), (64,), batch=0)
    with pytest.raises(TypeError, match="optimiser"):
        session.validate(small.Mlp(), (64,), batch=2, optimiser="adam")
