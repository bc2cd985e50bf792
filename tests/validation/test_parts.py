"""The parts that need no device: requests compared one by one, the search for the largest batch, verdicts, text."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import gpumem
from gpumem.errors import SpecError
from gpumem.validation import Bracket, DeviceFacts, Measurement, StepPeaks, Validation, weightless
from gpumem.validation.bracket import bracket_of
from gpumem.validation.compare import differences, verdict
from gpumem.validation.place import card_of, parse_place
from gpumem.validation.sequence import Request, compare_requests
from tests.validation import small

DEVICE = DeviceFacts(
    on="cuda:0", name="NVIDIA GeForce RTX 3090", capability="8.6", total_bytes=25_437_405_184, others_bytes=3 << 20,
    context_bytes=400 << 20, measured_by="NVML, this process", driver="580.1", torch="2.14.1+cu130", cuda="13.0",
    cudnn=92400, python="3.11.7",
)  # fmt: skip


def _requests(*sizes: int) -> list[Request]:
    return [Request(size, f"op{size}") for size in sizes]


@pytest.mark.parametrize(
    ("measured", "differing", "parted"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], {}, None),
        ([1, 2, 3, 9, 5, 6, 7, 8], {"op4": (1, 5)}, None),
        ([1, 2, 3, 5, 6, 7, 8], {"op4": (1, -4)}, None),
        ([1, 2, 3, 70, 71, 4, 5, 6, 7, 8], {"op3": (2, 141)}, None),
        ([1, 2, 3, 4, 5, 6, 7], {"op8": (1, -8)}, None),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], {"op8": (1, 9)}, None),
        ([1, 2, *range(100, 140)], {}, 2),
    ],
)
def test_requests_are_compared_one_by_one(
    measured: list[int], differing: dict[str, tuple[int, int]], parted: int | None
) -> None:
    found = compare_requests(_requests(*range(1, 9)), measured)
    assert (found.differing, found.parted) == (differing, parted)
    assert found.equal == (not differing and parted is None)
    text = found.text()
    assert ("as predicted, in order" in text) == found.equal
    assert ("another sequence" in text) == (parted is not None)
    assert all(op in text for op in differing)


def test_a_run_that_was_stopped_is_compared_as_far_as_it_got() -> None:
    assert compare_requests(_requests(*range(1, 99)), [1, 2, 3], whole=False).equal
    assert not compare_requests(_requests(*range(1, 99)), [1, 2, 3]).equal


def _bracket(largest: int, predicted: int) -> tuple[Bracket, int]:
    runs: list[int] = []

    def run(batch: int) -> Measurement:
        runs.append(batch)
        return Measurement(outcome="ran" if batch <= largest else "out of memory", batch=batch)

    first = run(predicted)
    return bracket_of(first, run), len(runs) - 1


@pytest.mark.parametrize("largest", [1, 2, 7, 99, 100, 101, 117, 250])
def test_the_largest_batch_is_found_from_either_side(largest: int) -> None:
    bracket, runs = _bracket(largest, 100)
    assert bracket.largest == largest
    assert bracket.exact == (largest == 100)
    assert bracket.safe == (largest >= 100)
    assert (runs == 1) >= bracket.exact
    assert runs <= 16
    assert str(largest) in bracket.text()
    assert Bracket.from_dict(json.loads(json.dumps(bracket.to_dict()))) == bracket


def test_not_even_one_sample() -> None:
    assert _bracket(0, 100)[0].largest == 0


def test_a_crash_is_no_border() -> None:
    bracket = bracket_of(Measurement(outcome="ran", batch=4), lambda batch: Measurement(outcome="crashed", batch=batch))
    assert (bracket.largest, bracket.safe, bracket.exact) == (None, True, False)
    assert "5 crashed" in bracket.text()


def _step(report: gpumem.Report, **more: int) -> StepPeaks:
    peaks: dict[str, Any] = {f"{name}_bytes": getattr(report, f"{name}_peak").likely + more.get(name, 0)
                             for name in ("requested", "allocated", "reserved")}  # fmt: skip
    outside = report.to_dict()["context"]["likely"] + more.get("outside", 0)
    return StepPeaks(name="step 1", **peaks, outside_bytes=outside, seconds=0.01)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "equal"),
        ({"outside": 1 << 20}, "equal"),
        ({"outside": 1 << 31}, "outside"),
        ({"requested": 4}, "outside"),
        ({"reserved": 2 << 20}, "outside"),
    ],
)
def test_verdicts(more: dict[str, int], expected: str) -> None:
    report = gpumem.estimate(small.Mlp(), (64,), batch=8, gpu="rtx3090")
    measured = Measurement(outcome="ran", batch=8, steps=(_step(report, **more),))
    rows = differences(report, report, measured, DEVICE, None)
    assert verdict(report, measured, rows) == expected
    assert all((row.cause == "") == (row.status == "equal") for row in rows if row.quantity == "device")
    failed = replace(measured, outcome="crashed")
    assert verdict(report, failed, rows) == "not measured"


def test_an_out_of_memory_may_be_what_was_predicted() -> None:
    small_budget = gpumem.estimate(small.Mlp(), (64,), batch=1 << 20, gpu="rtx3090", budget="1GB")
    assert small_budget.fits is False
    full = Measurement(outcome="out of memory", batch=1 << 20)
    assert verdict(small_budget, full, ()) == "out of memory, as predicted"
    assert verdict(gpumem.estimate(small.Mlp(), (64,), batch=8, gpu="rtx3090"), full, ()) == "outside"


def _validation() -> Validation:
    report = gpumem.estimate(small.Mlp(), (64,), batch=8, gpu="rtx3090", budget="2GB")
    measured = Measurement(outcome="ran", batch=8, allowed_bytes=1 << 30, steps=(_step(report),))
    plan = gpumem.plan(small.blocks(), (64,), batch=8, gpu="rtx3090", budget="2GB")
    return Validation(
        model="Mlp", fingerprint="f", loop={"optimizer": "SGD()"}, budget_bytes=2 * 10**9, plan=plan, predicted=report,
        device=DEVICE, measured=measured, differences=differences(report, report, measured, DEVICE, None), requests="",
        verdict="equal", notes=("a note",), bracket=Bracket(8, ((8, "ran"), (9, "out of memory"))), gpumem="0.1.0",
        created="2026-11-30T00:00:00+00:00",
    )  # fmt: skip


def test_a_validation_travels() -> None:
    validation = _validation()
    assert validation.confirmed
    assert pickle.loads(pickle.dumps(validation)) == validation
    assert Validation.from_json(validation.to_json()) == validation
    with pytest.raises(AttributeError):
        validation.verdict = "outside"  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1}', "null"])
def test_what_is_no_validation_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        Validation.from_json(text)


def test_the_text_has_what_matters() -> None:
    text = str(_validation())
    assert "Confirmed: it ran within 1.86 GiB (2,000,000,000 bytes); predicted and measured: equal" in text
    assert "batch 8 runs, batch 9 is out of memory: the largest batch" in text
    assert "cuda:0 (NVIDIA GeForce RTX 3090) · torch 2.14.1+cu130 · driver 580.1" in text
    for word in ("requested", "allocated", "reserved", "device", "10.0 ms", "a note"):
        assert word in text


def test_a_receipt_has_the_evidence() -> None:
    receipt = json.loads(_validation().receipt())
    assert receipt["device"]["driver"] == "580.1"
    assert receipt["predicted"]["requested_peak"]["likely"] == receipt["measured"]["steps"][0]["requested_bytes"]
    assert (receipt["verdict"], receipt["bracket"]["largest"], receipt["created"][:4]) == ("equal", 8, "2026")
    assert "layers" not in receipt["predicted"]


@pytest.mark.parametrize(
    ("on", "place"), [("cuda", ("cuda", None, 0)), (torch.device("cuda", 3), ("cuda:3", None, 3)),
                      ("virtual:RTX3090", ("virtual:rtx3090", "rtx3090", 0))]
)  # fmt: skip
def test_places(on: Any, place: tuple[str, str | None, int]) -> None:
    found = parse_place(on)
    assert (found.text, found.gpu, found.index) == place


def test_a_card_is_known_by_its_name_and_memory() -> None:
    assert card_of(DEVICE) == "rtx3090"
    assert card_of(replace(DEVICE, name="NVIDIA A100-SXM4-80GB", total_bytes=84 * 10**9)) == "a100-80gb"
    assert card_of(replace(DEVICE, name="Some Card")) is None


class _Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.tied = self.layer.weight
        self.register_buffer("index", torch.arange(1 << 20))
        self.register_buffer("mask", torch.ones(1 << 20))
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.frozen = nn.Parameter(torch.ones(2, 3).t(), requires_grad=False)
        self.result = self.layer(torch.ones(1, 4))


def test_weights_do_not_travel_and_ties_stay_ties() -> None:
    model = _Odd()
    data = weightless.dumps(model, "odd")
    assert 8 << 20 < len(data) < 9 << 20
    back = weightless.loads(data)
    assert back.tied is back.layer.weight
    assert isinstance(back.tied, nn.Parameter)
    assert not back.layer.weight.any()
    assert back.index.equal(model.index)
    assert not back.mask.any()
    assert back.scale.equal(model.scale)
    assert (back.frozen.stride(), back.frozen.requires_grad) == (model.frozen.stride(), False)
    assert back.result.shape == model.result.shape
    half = weightless.loads(data, torch.bfloat16)
    assert (half.layer.weight.dtype, half.scale.dtype) == (torch.bfloat16, torch.float32)


def test_meta_tensors_become_zeros() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.append(model[0])
    made: Any = weightless.materialised(model, torch.float16)
    assert made[0] is made[2]
    assert made[0].weight.dtype == torch.float16
    assert not any(tensor.is_meta or tensor.any() for tensor in made.state_dict().values())
