"""Models of transformers, with a key-value cache switched on as they come."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpumem.checkpointing import apply_regions, candidate_regions
from gpumem.checkpointing.options import CHECKPOINT, REENTRANT
from gpumem.errors import RegionError
from tests.checkpointing.compare import AVAILABLE, differences, step

transformers = pytest.importorskip(
    "transformers", reason="models of transformers are tested; old versions of torch run without"
)

_TOKENS = {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SMALL = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 32, **_TOKENS}


def _inputs(**more: Any) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 60, (2, 7)), **more}


def _make(name: str) -> tuple[Any, dict[str, Any]]:
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_head=4, n_layer=3, n_positions=32, **_TOKENS)
        return transformers.GPT2LMHeadModel(config), _inputs()
    if name == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**_SMALL)), _inputs()
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL)), _inputs()
    config = transformers.T5Config(
        d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0, **_TOKENS
    )
    return transformers.T5ForConditionalGeneration(config), _inputs(labels=torch.randint(3, 60, (2, 5)))


class _Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> torch.Tensor:
        return self.model(**inputs).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("option", [option for option in AVAILABLE if option != REENTRANT])
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "t5"])
def test_a_step_is_the_same(name: str, option: str, autocast: bool) -> None:
    torch.manual_seed(0)
    model, inputs = _make(name)
    regions = [*candidate_regions(model)]
    chosen = {region.name: option for region in regions[::2]}
    chosen |= {part.name: option for region in regions[1::2] for part in region.parts}
    logits = _Logits(model.train())
    cached = getattr(model.config, "use_cache", False)
    model.config.use_cache = False
    expected = step(logits, inputs, autocast=autocast)
    model.config.use_cache = cached
    with apply_regions(model, chosen):
        assert differences(expected, step(logits, inputs, autocast=autocast)) == []
    assert getattr(model.config, "use_cache", False) == cached


def test_reentrant_differs_by_rounding_at_most() -> None:
    torch.manual_seed(0)
    model, inputs = _make("llama")
    logits = _Logits(model.train())
    model.config.use_cache = False
    expected = step(logits, inputs)
    with apply_regions(model, {region.name: REENTRANT for region in candidate_regions(model)}):
        got = step(logits, inputs)
    assert got.gradients.keys() == expected.gradients.keys()
    for name, gradient in expected.gradients.items():
        torch.testing.assert_close(got.gradients[name], gradient)


def test_a_cache_is_off_while_a_plan_is_applied() -> None:
    model, inputs = _make("gpt2")
    model.train()
    assert model(**inputs).past_key_values is not None
    with apply_regions(model, {"transformer.h.1": CHECKPOINT}):
        assert model(**inputs).past_key_values is None
        # Asked for all the same: the region goes without it, other layers fill it.
        cache = model(**inputs, use_cache=True).past_key_values
        assert cache.get_seq_length(0) == 7
        assert cache.get_seq_length(1) == 0
        with torch.no_grad():
            assert model(**inputs, use_cache=True).past_key_values.get_seq_length(1) == 7
    assert model(**inputs).past_key_values.get_seq_length(1) == 7


def test_a_filled_cache_is_refused() -> None:
    model, inputs = _make("gpt2")
    model.train()
    cache = model(**inputs).past_key_values
    with (
        apply_regions(model, {"transformer.h.1": CHECKPOINT}),
        pytest.raises(RegionError, match=r"region 'transformer.h.1' was given a key-value cache that already holds"),
    ):
        model(**inputs, past_key_values=cache)
