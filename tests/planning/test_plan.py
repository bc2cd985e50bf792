"""`gpumem.plan` as a user meets it."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import gpumem
from gpumem.errors import DoesNotFitError, InputError, ModelMismatchError, PlanError, RegionError, UnknownNameError
from tests.planning.models import SAMPLE, WIDTH, Block, Decoder, Overwriting, Tower

TARGET: dict[str, Any] = {"gpu": "rtx3090", "context": 0}
MIB = 1 << 20


@pytest.fixture(scope="module")
def tight() -> gpumem.Plan:
    """A plan that needs checkpoints."""
    needs = gpumem.estimate(Tower(), SAMPLE, batch=64, **TARGET).device_peak.high
    return gpumem.plan(Tower(), SAMPLE, batch=64, budget=int(0.7 * needs), **TARGET)


def test_a_plan_fits_its_budget_and_says_what_it_costs(tight: gpumem.Plan) -> None:
    assert tight.batch == 64
    assert tight.report.fits
    assert 0 < len(tight.regions) <= tight.region_count == 5
    assert 0 < tight.overhead < 1
    assert tight.recompute_bound_seconds <= tight.recompute_seconds


def test_the_report_is_that_of_the_applied_plan(tight: gpumem.Plan) -> None:
    model = Tower()
    with tight.apply(model):
        report = gpumem.estimate(model, SAMPLE, batch=64, budget=tight.budget_bytes, **TARGET)
    assert report.requested_peak == tight.report.requested_peak
    assert report.reserved_peak == tight.report.reserved_peak
    unchanged = gpumem.estimate(model, SAMPLE, batch=64, **TARGET)
    assert unchanged.requested_peak.high > tight.report.requested_peak.high


def test_apply_keeps_names_outputs_and_gradients(tight: gpumem.Plan) -> None:
    torch.manual_seed(0)
    model = Tower()
    names = list(model.state_dict())
    sample = torch.randn(2, *SAMPLE)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        model(sample).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    before = gradients()
    applied = tight.apply(model)
    assert list(model.state_dict()) == names
    assert all(torch.equal(a, b) for a, b in zip(before, gradients(), strict=True))
    applied.undo()
    assert "forward" not in vars(model.blocks[0])


def test_json_and_pickle_keep_everything(tight: gpumem.Plan) -> None:
    assert gpumem.Plan.from_json(tight.to_json()) == tight
    assert pickle.loads(pickle.dumps(tight)) == tight


def test_a_plan_is_written_for_people(tight: gpumem.Plan) -> None:
    text = str(tight)
    assert "Tower: batch 64" in text
    assert "Checkpoint" in text
    assert "blocks." in text
    assert "Recomputation:" in text


def test_the_largest_batch_is_larger_with_checkpoints_and_fits() -> None:
    budget = 256 * MIB
    without = gpumem.max_batch(Tower(), SAMPLE, budget=budget, **TARGET)
    plan = gpumem.plan(Tower(), SAMPLE, objective="batch", budget=budget, **TARGET)
    assert plan.batch > without
    assert plan.report.fits
    with pytest.raises(DoesNotFitError):
        gpumem.plan(Tower(), SAMPLE, batch=plan.batch + 1 + plan.batch // 50, budget=budget, **TARGET)
    assert {other.what for other in plan.alternatives} >= {"no checkpoints"}


def test_segments_that_grow_are_named_where_they_save_recomputation() -> None:
    loop: dict[str, Any] = {"batch": 32, "precision": "bf16", "optimizer": "sgd", "gpu": "a100-80gb", "context": 0}
    sample = (512, WIDTH)
    plan = gpumem.plan(Decoder(), sample, budget="1.6GiB", **loop)
    (other,) = plan.alternatives
    assert other.batch == plan.batch
    assert other.overhead < plan.overhead
    assert "expandable_segments:True" in other.what
    assert other.what in str(plan)
    again = gpumem.plan(Decoder(), sample, budget="1.6GiB", alloc_conf="expandable_segments:True", **loop)
    assert again.overhead == pytest.approx(other.overhead)
    assert not again.alternatives
    with pytest.raises(DoesNotFitError, match=r"1\.54 GiB") as refused:
        gpumem.plan(Decoder(), sample, budget="1.2GiB", **loop)
    assert "tried: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: does not fit" in refused.value.hint


def test_throughput_does_not_recompute_for_nothing() -> None:
    plan = gpumem.plan(Tower(), SAMPLE, budget=256 * MIB, **TARGET)
    largest = gpumem.plan(Tower(), SAMPLE, objective="batch", budget=256 * MIB, **TARGET)
    assert plan.samples_per_second >= largest.samples_per_second


def test_a_global_batch_is_reached_by_accumulation() -> None:
    plan = gpumem.plan(Tower(), SAMPLE, global_batch=512, budget=256 * MIB, **TARGET)
    assert plan.batch * plan.accumulate == 512
    assert plan.accumulate > 1
    assert plan.report.fits


def test_a_global_batch_of_many_divisors_has_small_ones_too() -> None:
    plan = gpumem.plan(Tower(), SAMPLE, global_batch=5040, budget=40 * MIB, **TARGET)
    assert plan.batch * plan.accumulate == 5040


def test_blocks_that_cannot_be_joined_are_said() -> None:
    model = Tower()
    for block in model.blocks:
        assert isinstance(block, Block)
        torch.nn.utils.parametrizations.spectral_norm(block.up)
    plan = gpumem.plan(model, SAMPLE, batch=8, budget="2GiB", **TARGET)
    assert plan.region_count < len(model.blocks)
    assert any("keep what autograd saves" in note for note in plan.notes)
    assert "keep what autograd saves" in str(plan)


def test_a_region_in_eval_mode_is_said(tight: gpumem.Plan) -> None:
    model = Tower()
    model.blocks.eval()
    with pytest.warns(UserWarning, match="eval mode"):
        tight.apply(model)


def test_of_several_precisions_one_is_chosen() -> None:
    plan = gpumem.plan(Tower(), SAMPLE, batch=64, precision=("fp32", "amp-bf16"), budget=256 * MIB, **TARGET)
    assert plan.precision in ("fp32", "amp-bf16")


def test_the_same_question_has_the_same_plan(tight: gpumem.Plan) -> None:
    again = gpumem.plan(Tower(), SAMPLE, batch=64, budget=tight.budget_bytes, **TARGET)
    assert again == tight


def test_the_model_is_left_as_it_was() -> None:
    model = Tower()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    gpumem.plan(model, SAMPLE, batch=8, budget="2GiB", gpu="rtx3090")
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


def test_time_is_that_of_one_micro_batch() -> None:
    one = gpumem.plan(Tower(), SAMPLE, batch=64, **TARGET)
    many = gpumem.plan(Tower(), SAMPLE, batch=64, accumulate=4, **TARGET)
    # Sums of gradients and the optimizer's share differ.
    assert many.step_seconds == pytest.approx(one.step_seconds, rel=0.1)
    assert many.samples_per_second == pytest.approx(one.samples_per_second, rel=0.1)


def test_blocks_that_write_to_their_argument_are_left_alone() -> None:
    def model() -> nn.Module:
        return Overwriting((True, False, False, True, False))

    needs = gpumem.estimate(model(), SAMPLE, batch=64, **TARGET).device_peak.high
    plan = gpumem.plan(model(), SAMPLE, batch=64, budget=int(0.9 * needs), **TARGET)
    assert plan.regions
    assert set(plan.regions) <= {"blocks.1", "blocks.2", "blocks.4"}
    trained = model()
    plan.apply(trained)
    trained(torch.randn(2, *SAMPLE)).sum().backward()


def test_a_model_whose_blocks_all_write_to_their_argument_has_no_plan() -> None:
    model = Overwriting((True,) * 4)
    needs = gpumem.estimate(model, SAMPLE, batch=64, **TARGET).device_peak.high
    with pytest.raises(DoesNotFitError):
        gpumem.plan(model, SAMPLE, batch=64, budget=int(0.9 * needs), **TARGET)


def test_the_code_of_a_transformers_plan_runs_as_it_stands() -> None:
    transformers = pytest.importorskip(
        "transformers", reason="models of transformers are tested; old versions of torch run without"
    )
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, vocab_size=64
    )
    model = transformers.LlamaForCausalLM(config)
    input = "input_ids=64:int64;labels=64:int64"
    needs = gpumem.estimate(model, input, batch=64, **TARGET).device_peak.high
    plan = gpumem.plan(model, input, batch=64, budget=int(0.8 * needs), **TARGET)
    assert plan.regions
    assert plan.caches_off
    exec(plan.code(), {"model": model})
    ids = torch.randint(0, 64, (2, 64))
    model(input_ids=ids, labels=ids).loss.backward()
    kept = gpumem.plan(transformers.LlamaForCausalLM(config), input, batch=1, **TARGET)
    assert not kept.regions
    assert "use_cache = False" in kept.code() or not kept.caches_off


class TestRefused:
    def test_a_model_with_a_plan(self, tight: gpumem.Plan) -> None:
        model = Tower()
        with tight.apply(model), pytest.raises(RegionError, match="plan applied already"):
            gpumem.plan(model, SAMPLE, batch=64, **TARGET)

    def test_a_compiled_model(self) -> None:
        compiled: Any = torch.compile(Tower())
        with pytest.raises(RegionError, match="OptimizedModule"):
            gpumem.plan(compiled, SAMPLE, batch=64, **TARGET)

    def test_nothing_fits(self) -> None:
        with pytest.raises(DoesNotFitError, match=r"the least that any needs at batch 64 is .* bytes\)") as caught:
            gpumem.plan(Tower(), SAMPLE, batch=64, budget=8 * MIB, **TARGET)
        assert caught.value.smallest_bytes > 8 * MIB
        assert "batch 32: does not fit" in caught.value.hint

    def test_states_in_8_bits_are_tried(self) -> None:
        model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(4)))
        target: dict[str, Any] = {**TARGET, "budget": 90 * MIB}
        with pytest.raises(DoesNotFitError) as caught:
            gpumem.plan(model, (1000,), batch=4, optimizer="adamw", **target)
        assert "optimizer bitsandbytes.optim.AdamW8bit: fits" in caught.value.hint
        with pytest.raises(DoesNotFitError) as caught:
            gpumem.plan(model, (1000,), batch=4, optimizer="adamw", channels_last=True, **target)
        assert "AdamW8bit" not in caught.value.hint

    def test_nothing_fits_two_samples(self) -> None:
        with pytest.raises(DoesNotFitError) as caught:
            gpumem.plan(Tower(), SAMPLE, batch=2, budget=1 * MIB, **TARGET)
        assert caught.value.hint.count("batch 1:") == 1

    def test_nothing_fits_a_global_batch(self) -> None:
        with pytest.raises(DoesNotFitError, match="at batch 1 is"):
            gpumem.plan(Tower(), SAMPLE, global_batch=8, budget=1 * MIB, **TARGET)

    def test_no_limit(self) -> None:
        with pytest.raises(PlanError, match="needs a limit"):
            gpumem.plan(Tower(), SAMPLE, batch=64)

    def test_inference(self) -> None:
        with pytest.raises(PlanError, match="for training"):
            gpumem.plan(Tower(), SAMPLE, batch=64, mode="infer", **TARGET)

    def test_contradicting_batches(self) -> None:
        with pytest.raises(InputError, match="no multiple"):
            gpumem.plan(Tower(), SAMPLE, batch=64, global_batch=100, **TARGET)

    @pytest.mark.parametrize("batch", [0, -1, 2.5, True, "8", 1 << 64])
    def test_batches_that_are_none(self, batch: Any) -> None:
        with pytest.raises(InputError, match="positive integer"):
            gpumem.plan(Tower(), SAMPLE, batch=batch, **TARGET)

    def test_two_ways_to_accumulate(self) -> None:
        with pytest.raises(InputError, match="both given"):
            gpumem.plan(Tower(), SAMPLE, global_batch=64, accumulate=4, **TARGET)

    def test_an_unknown_mode(self) -> None:
        with pytest.raises(UnknownNameError, match="mode"):
            gpumem.plan(Tower(), SAMPLE, batch=8, mode="x", **TARGET)

    @pytest.mark.parametrize("precision", [(), None])
    def test_an_empty_axis(self, precision: Any) -> None:
        with pytest.raises(InputError, match="no precision"):
            gpumem.plan(Tower(), SAMPLE, batch=8, precision=precision, **TARGET)

    def test_an_unknown_objective(self) -> None:
        with pytest.raises(InputError, match="objective"):
            gpumem.plan(Tower(), SAMPLE, objective="speed", **TARGET)

    def test_an_unknown_precision(self) -> None:
        with pytest.raises(UnknownNameError, match="precision"):
            gpumem.plan(Tower(), SAMPLE, batch=8, precision="fp31", **TARGET)

    def test_an_unknown_keyword(self) -> None:
        with pytest.raises(TypeError, match="bach"):
            gpumem.plan(Tower(), SAMPLE, bach=8, **TARGET)

    def test_another_model(self, tight: gpumem.Plan) -> None:
        with pytest.raises(ModelMismatchError, match="blocks"):
            tight.apply(Tower((256, 256)))

    def test_a_newer_schema(self, tight: gpumem.Plan) -> None:
        newer = json.dumps({**json.loads(tight.to_json()), "schema": 99})
        with pytest.raises(PlanError, match="schema 99"):
            gpumem.Plan.from_json(newer)

    @pytest.mark.parametrize(
        "damage",
        [{"regions": None}, {"regions": [1]}, {"regions": {"blocks.0": "chekpoint"}}, {"report": {}}],
    )
    def test_a_damaged_plan(self, tight: gpumem.Plan, damage: dict[str, Any]) -> None:
        with pytest.raises(PlanError, match="damaged"):
            gpumem.Plan.from_json(json.dumps({**json.loads(tight.to_json()), **damage}))

    @pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"schema": 1}'])
    def test_what_is_no_plan(self, text: str) -> None:
        with pytest.raises(PlanError):
            gpumem.Plan.from_json(text)
