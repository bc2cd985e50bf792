"""`hf:` small configurations of transformers' architectures, built from their config classes; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpumem.extraction.inputs import TensorSpec
from tests.parity.models.base import LoadedModel

_SMALL = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
_Made = tuple[Any, dict[str, Any]]


def _ids(length: int) -> TensorSpec:
    return TensorSpec((length,), torch.int64)


def _text(length: int = 64, **more: TensorSpec) -> dict[str, TensorSpec]:
    return {"input_ids": _ids(length), **more, "labels": _ids(length)}


def _image(side: int = 224) -> dict[str, TensorSpec]:
    return {"pixel_values": TensorSpec((3, side, side)), "labels": TensorSpec((), torch.int64)}


_MASK = {"attention_mask": TensorSpec((64,), torch.int64, fill=1.0)}


def _transformers() -> Any:
    import transformers

    return transformers


def _causal(prefix: str, length: int = 128, **config: Any) -> Callable[[], _Made]:
    """A decoder-only language model of the Llama shape."""

    def make() -> _Made:
        t = _transformers()
        arguments = {"vocab_size": 8000, "num_key_value_heads": 2, **_SMALL, **config}
        model = getattr(t, f"{prefix}ForCausalLM")(getattr(t, f"{prefix}Config")(**arguments))
        return model, _text(length)

    return make


def _of(model: str, config: str, inputs: dict[str, Any], **arguments: Any) -> Callable[[], _Made]:
    def make() -> _Made:
        t = _transformers()
        return getattr(t, model)(getattr(t, config)(**arguments)), inputs

    return make


def _clip() -> _Made:
    t = _transformers()
    text = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    config = t.CLIPConfig(text_config=dict(text), vision_config={**text, "patch_size": 32}, projection_dim=64)
    inputs = {
        "input_ids": _ids(32),
        "pixel_values": TensorSpec((3, 224, 224)),
        "attention_mask": TensorSpec((32,), torch.int64, fill=1.0),
        "return_loss": True,
    }
    return t.CLIPModel(config), inputs


def _vision_text() -> _Made:
    t = _transformers()
    text = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    config = t.SiglipConfig(text_config=dict(text), vision_config={**text, "patch_size": 32})
    inputs = {"input_ids": _ids(32), "pixel_values": TensorSpec((3, 224, 224)), "return_loss": True}
    return t.SiglipModel(config), inputs


_BUILDERS: dict[str, Callable[[], _Made]] = {
    "gpt2": _of("GPT2LMHeadModel", "GPT2Config", _text(), n_layer=2),
    "gpt_neox": _of("GPTNeoXForCausalLM", "GPTNeoXConfig", _text(), vocab_size=8000, **_SMALL),
    "bert": _of("BertForMaskedLM", "BertConfig", {**_MASK, **_text()}, num_hidden_layers=2),
    "bert_classifier": _of(
        "BertForSequenceClassification",
        "BertConfig",
        {"input_ids": _ids(64), "labels": TensorSpec((), torch.int64)},
        num_hidden_layers=2,
    ),
    "roberta": _of("RobertaForMaskedLM", "RobertaConfig", _text(), num_hidden_layers=2),
    "distilbert": _of("DistilBertForMaskedLM", "DistilBertConfig", _text(), n_layers=2),
    "albert": _of("AlbertForMaskedLM", "AlbertConfig", _text(), embedding_size=64, **_SMALL),
    "electra": _of("ElectraForMaskedLM", "ElectraConfig", _text(), num_hidden_layers=2),
    "deberta_v2": _of("DebertaV2ForMaskedLM", "DebertaV2Config", _text(), vocab_size=8000, **_SMALL),
    "t5": _of(
        "T5ForConditionalGeneration",
        "T5Config",
        {"input_ids": _ids(64), "labels": _ids(32)},
        num_layers=2,
        decoder_start_token_id=0,
    ),
    "bart": _of(
        "BartForConditionalGeneration",
        "BartConfig",
        {"input_ids": _ids(64), "labels": _ids(32)},
        encoder_layers=2,
        decoder_layers=2,
        d_model=512,
    ),
    "opt": _of(
        "OPTForCausalLM",
        "OPTConfig",
        _text(),
        vocab_size=8000,
        hidden_size=256,
        num_hidden_layers=2,
        ffn_dim=512,
        num_attention_heads=4,
        word_embed_proj_dim=256,
    ),
    "bloom": _of("BloomForCausalLM", "BloomConfig", _text(), vocab_size=8000, hidden_size=256, n_layer=2, n_head=4),
    "llama": _causal("Llama"),
    "mistral": _causal("Mistral"),
    "qwen2": _causal("Qwen2"),
    "qwen3": _causal("Qwen3", head_dim=64),
    "gemma": _causal("Gemma", num_key_value_heads=1, head_dim=64),
    "gemma2": _causal("Gemma2", num_key_value_heads=2, head_dim=64),
    "phi": _causal("Phi", num_key_value_heads=4),
    "phi3": _causal("Phi3", pad_token_id=0),
    "olmo": _causal("Olmo"),
    "starcoder2": _causal("Starcoder2"),
    "granite": _causal("Granite"),
    "vit": _of("ViTForImageClassification", "ViTConfig", _image(), num_hidden_layers=2),
    "deit": _of("DeiTForImageClassification", "DeiTConfig", _image(), num_hidden_layers=2),
    "dinov2": _of("Dinov2ForImageClassification", "Dinov2Config", _image(), num_hidden_layers=2),
    "beit": _of("BeitForImageClassification", "BeitConfig", _image(), num_hidden_layers=2),
    "swin": _of("SwinForImageClassification", "SwinConfig", _image(), depths=[1, 1, 2, 1]),
    "convnext": _of("ConvNextForImageClassification", "ConvNextConfig", _image(), depths=[1, 1, 2, 1]),
    "resnet": _of("ResNetForImageClassification", "ResNetConfig", _image(), depths=[1, 1, 1, 1]),
    "segformer": _of("SegformerForImageClassification", "SegformerConfig", _image()),
    "mobilevit": _of("MobileViTForImageClassification", "MobileViTConfig", _image(256)),
    "whisper": _of(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {"input_features": TensorSpec((80, 3000)), "labels": _ids(32)},
        encoder_layers=2,
        decoder_layers=2,
    ),
    "wav2vec2": _of(
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        {"input_values": TensorSpec((16000,)), "labels": TensorSpec((), torch.int64)},
        num_hidden_layers=2,
        apply_spec_augment=False,
        # Drawn on the host, each step another: no two runs agree (tests/extract/test_host_draws.py).
        layerdrop=0.0,
    ),
    "hubert": _of(
        "HubertForSequenceClassification",
        "HubertConfig",
        {"input_values": TensorSpec((16000,)), "labels": TensorSpec((), torch.int64)},
        num_hidden_layers=2,
        apply_spec_augment=False,
        layerdrop=0.0,
    ),
    "mamba": _of("MambaForCausalLM", "MambaConfig", _text(32), vocab_size=4000, hidden_size=128, num_hidden_layers=2),
    "clip": _clip,
    "siglip": _vision_text,
}


def names() -> list[str]:
    """All architectures here."""
    return list(_BUILDERS)


def load(name: str) -> LoadedModel:
    """Build one model."""
    model, inputs = _BUILDERS[name]()
    return LoadedModel(model, inputs)
