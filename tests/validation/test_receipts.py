"""Receipts in `tests/data/receipts`: what gpumem predicts now is what was measured then.

A receipt is made by `gpumem validate ... --receipt FILE`; those here are of the virtual GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gpumem.errors import InputError, ModelMismatchError, SpecError
from gpumem.validation import Session, replay
from tests.validation import small

RECEIPTS = sorted((Path(__file__).resolve().parents[1] / "data" / "receipts").glob("*.json"))


def test_there_are_some() -> None:
    assert len(RECEIPTS) >= 4


@pytest.mark.parametrize("file", RECEIPTS, ids=lambda file: file.stem)
def test_todays_prediction_is_what_was_measured(file: Path) -> None:
    kept = json.loads(file.read_text())
    if kept["device"]["torch"] != torch.__version__:
        pytest.skip(f"the receipt is of torch {kept['device']['torch']}, this is {torch.__version__}")
    statuses = {row.quantity: row.status for row in replay(file.read_text())}
    if kept["verdict"] == "equal":
        assert {statuses[name] for name in ("requested", "allocated", "reserved")} == {"equal"}, statuses
    assert "outside" not in statuses.values()


def test_a_receipt_of_a_module_needs_the_module(session: Session) -> None:
    receipt = session.validate(small.blocks(), (64,), batch=32, optimizer=("adam", {"amsgrad": True})).receipt()
    assert {row.status for row in replay(receipt, small.blocks())} == {"equal"}
    with pytest.raises(InputError, match=r"model \(Sequential\) has no name"):
        replay(receipt)
    with pytest.raises(ModelMismatchError, match="the receipt was made for another model"):
        replay(receipt, small.Mlp())


def test_a_changed_number_is_noticed() -> None:
    kept = json.loads(RECEIPTS[0].read_text())
    for step in kept["measured"]["steps"]:
        step["requested_bytes"] += 4
    (row, *_) = replay(json.dumps(kept))
    assert (row.quantity, row.difference_bytes) == ("requested", 4)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"receipt": 99}'])
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        replay(text)
