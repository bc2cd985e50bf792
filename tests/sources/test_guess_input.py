"""Modules handed over without an input: what their own library says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gpumem.extraction.inputs import describe, parse_input
from gpumem.sources import guess_input


def _guess(model: nn.Module, mode: str = "train") -> str:
    found = guess_input(model, mode=mode)
    assert found is not None
    assert found[1]
    return describe(parse_input(found[0]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", "float32[b, 3, 224, 224]"),
        ("inception_v3", "float32[b, 3, 299, 299]"),
        ("vit_b_32", "float32[b, 3, 224, 224]"),
        ("lraspp_mobilenet_v3_large", "float32[b, 3, 520, 520]"),
        ("fcn_resnet50", "float32[b, 3, 520, 520]"),
        ("raft_small", "float32[b, 3, 368, 496], float32[b, 3, 368, 496]"),
        ("s3d", "float32[b, 3, 128, 224, 224]"),
    ],
)
def test_torchvision_instances(name: str, expected: str) -> None:
    from gpumem.sources import resolve

    assert _guess(resolve(f"torchvision:{name}").model) == expected


def test_a_size_the_model_was_built_for_wins() -> None:
    import timm
    import torchvision

    assert _guess(torchvision.models.vit_b_32(image_size=384)) == "float32[b, 3, 384, 384]"
    assert _guess(timm.create_model("vit_tiny_patch16_224", img_size=96)) == "float32[b, 3, 96, 96]"
    assert _guess(timm.create_model("resnet18", in_chans=1)) == "float32[b, 1, 224, 224]"
    # tresnet's first convolution stands behind space-to-depth and takes 48 channels.
    assert _guess(timm.create_model("tresnet_m")) == "float32[b, 3, 224, 224]"


def _tiny(**extra: Any) -> dict[str, Any]:
    return {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32, **extra}


def test_transformers_instances() -> None:
    import transformers as hf

    bert = hf.BertConfig(**_tiny(max_position_embeddings=64))
    tokens = "input_ids=int64[b, 64]"
    assert _guess(hf.BertForMaskedLM(bert)) == f"{tokens}, labels=int64[b, 64]"
    assert _guess(hf.BertForTokenClassification(bert)) == f"{tokens}, labels=int64[b, 64]"
    assert _guess(hf.BertForSequenceClassification(bert)) == f"{tokens}, labels=int64[b]"
    assert _guess(hf.BertForSequenceClassification(bert), mode="infer") == tokens
    assert _guess(hf.BertModel(bert)) == tokens
    vit = hf.ViTConfig(**_tiny(image_size=32, patch_size=16, num_channels=1))
    assert _guess(hf.ViTForImageClassification(vit)) == "pixel_values=float32[b, 1, 32, 32], labels=int64[b]"


def test_adapters_take_what_their_model_takes() -> None:
    import peft
    import transformers as hf

    gpt2 = hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=1, n_embd=32, n_head=4, n_positions=64))
    adapted = peft.get_peft_model(gpt2, peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    assert _guess(adapted) == "input_ids=int64[b, 64], labels=int64[b, 64]"


def test_any_other_module_tells_nothing() -> None:
    assert guess_input(nn.Linear(2, 2)) is None

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.default_cfg = {"input_size": "unknown"}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert guess_input(Own()) is None
