"""Names to models: what is built, what its input is, and that every mistake names the way out."""

from __future__ import annotations

import builtins
import importlib
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpumem.errors import InputError, UnknownNameError
from gpumem.extraction.inputs import describe, make_inputs, parse_input
from gpumem.loop import call
from gpumem.sources import Source, resolve

TORCHVISION = {
    "alexnet": "float32[b, 3, 224, 224]",
    "resnet50": "float32[b, 3, 224, 224]",
    "efficientnet_b3": "float32[b, 3, 300, 300]",
    "googlenet": "float32[b, 3, 224, 224]",
    "inception_v3": "float32[b, 3, 299, 299]",
    "swin_v2_t": "float32[b, 3, 256, 256]",
    # Its weights were trained at 518; built without them, the model takes 224.
    "vit_h_14": "float32[b, 3, 224, 224]",
    "fcn_resnet50": "float32[b, 3, 520, 520]",
    "deeplabv3_mobilenet_v3_large": "float32[b, 3, 520, 520]",
    "lraspp_mobilenet_v3_large": "float32[b, 3, 520, 520]",
    "raft_small": "float32[b, 3, 368, 496], float32[b, 3, 368, 496]",
    "r3d_18": "float32[b, 3, 16, 112, 112]",
    "s3d": "float32[b, 3, 128, 224, 224]",
    "mvit_v2_s": "float32[b, 3, 16, 224, 224]",
    "swin3d_t": "float32[b, 3, 32, 224, 224]",
}
TIMM = {
    "resnet50": "float32[b, 3, 224, 224]",
    "resnet50.a1_in1k": "float32[b, 3, 224, 224]",
    "convnext_base": "float32[b, 3, 224, 224]",
    "vit_base_patch16_384": "float32[b, 3, 384, 384]",
    "eva02_base_patch14_448": "float32[b, 3, 448, 448]",
    "nfnet_f0": "float32[b, 3, 192, 192]",
    "tresnet_m": "float32[b, 3, 224, 224]",
    "mixer_b16_224": "float32[b, 3, 224, 224]",
    "levit_128": "float32[b, 3, 224, 224]",
    "coat_tiny": "float32[b, 3, 224, 224]",
    "naflexvit_base_patch16_gap": "float32[b, 3, 384, 384]",
    # Its constructor computes with parameters, so it is built on the CPU.
    "swinv2_cr_tiny_ns_224": "float32[b, 3, 224, 224]",
}
TOKENS = "input_ids=int64[b, 512], labels=int64[b, 512]"
IMAGE = "pixel_values=float32[b, 3, 224, 224], labels=int64[b]"
TRANSFORMERS = {
    "gpt2": TOKENS,
    "bert": TOKENS,
    "roberta": TOKENS,
    "distilbert": TOKENS,
    "t5": TOKENS,
    "bart": TOKENS,
    "llama": TOKENS,
    "mistral": TOKENS,
    "qwen2": TOKENS,
    "gemma": TOKENS,
    "opt": TOKENS,
    "vit": IMAGE,
    "swin": IMAGE,
    "resnet": IMAGE,
    "segformer": IMAGE,
    "videomae": "pixel_values=float32[b, 16, 3, 224, 224], labels=int64[b]",
    "whisper": "input_features=float32[b, 80, 3000], labels=int64[b, 448]",
    "wav2vec2": "input_values=float32[b, 160000], labels=int64[b]",
    # A configuration that several classes take, with and without the token of a teacher.
    "deit": IMAGE,
    "audio-spectrogram-transformer": "input_values=float32[b, 1024, 128], labels=int64[b]",
    "clip": "input_ids=int64[b, 77], pixel_values=float32[b, 3, 224, 224], return_loss=True",
}
# The forward pass on bare meta tensors reads a value that extraction answers (a causal mask made of ones).
NEEDS_EXTRACTION = {"bart"}


def _run(source: Source) -> Any:
    """The forward pass on meta tensors: the guessed input is one that the model takes."""
    inputs = make_inputs(parse_input(source.input), 2, "meta", None, channels_last=False)
    return call(source.model.to("meta").eval(), inputs)


@pytest.mark.parametrize(("name", "input_text"), TORCHVISION.items())
def test_torchvision_models_are_built_and_take_the_guessed_input(name: str, input_text: str) -> None:
    source = resolve(f"torchvision:{name}")
    assert describe(parse_input(source.input)) == input_text
    assert source.description == f"torchvision {name}"
    assert len(source.assumptions) == 1
    assert all(parameter.is_meta for parameter in source.model.parameters())
    _run(source)


@pytest.mark.parametrize(("name", "input_text"), TIMM.items())
def test_timm_models_are_built_and_take_the_guessed_input(name: str, input_text: str) -> None:
    source = resolve(f"timm:{name}")
    assert describe(parse_input(source.input)) == input_text
    assert _run(source).shape[0] == 2


@pytest.mark.parametrize(("model_type", "input_text"), TRANSFORMERS.items())
def test_transformers_models_are_built_and_return_their_own_loss(model_type: str, input_text: str) -> None:
    source = resolve(f"hf:{model_type}")
    assert describe(parse_input(source.input)) == input_text
    assert all(parameter.is_meta and parameter.dtype == torch.float32 for parameter in source.model.parameters())
    assert any("transformers' defaults" in assumption for assumption in source.assumptions)
    if model_type not in NEEDS_EXTRACTION:
        assert _run(source).loss.shape == ()


def test_inference_takes_no_labels() -> None:
    assert describe(parse_input(resolve("hf:bert", mode="infer").input)) == "input_ids=int64[b, 512]"
    seq2seq = describe(parse_input(resolve("hf:t5", mode="infer").input))
    assert seq2seq == "input_ids=int64[b, 512], decoder_input_ids=int64[b, 512]"


def test_what_is_left_out_of_a_guess_is_said() -> None:
    assert "without pixel_values" in resolve("hf:llava").assumptions[-1]
    assert not any("without" in assumption for assumption in resolve("hf:bert").assumptions)


def test_experts_larger_than_the_host_are_built() -> None:
    from transformers import LongcatFlashConfig

    layer = resolve("hf:longcat_flash").model.get_parameter("model.layers.0.mlp.experts.gate_up_proj")
    config = LongcatFlashConfig()
    assert layer.is_meta
    assert layer.shape[0] >= config.n_routed_experts


def test_a_shape_replaces_the_guess() -> None:
    assert resolve("timm:resnet18", input=(3, 64, 64)).input == (3, 64, 64)
    source = resolve("hf:gpt2", input=(128,))
    assert describe(parse_input(source.input)) == "input_ids=int64[b, 128], labels=int64[b, 128]"
    assert any("given" in assumption for assumption in source.assumptions)
    named = {"input_ids": ((64,), torch.int64)}
    assert resolve("hf:gpt2", input=named).input is named


def test_a_local_config_is_used(tmp_path: Path) -> None:
    from transformers import BertConfig

    BertConfig(num_hidden_layers=2, hidden_size=48, num_attention_heads=4, intermediate_size=64).save_pretrained(
        tmp_path
    )
    source = resolve(f"hf:{tmp_path}")
    assert source.model.get_parameter("bert.embeddings.word_embeddings.weight").shape[1] == 48
    assert source.assumptions[0] == f"config: local files of {tmp_path}"


def test_building_leaves_random_states_alone() -> None:
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    resolve("torchvision:vit_b_16")
    resolve("timm:swinv2_cr_tiny_ns_224")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_models_built_afterwards_have_their_weights() -> None:
    resolve("torchvision:resnet18")
    assert not torch.nn.Linear(2, 2).weight.is_meta


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("resnet50", "names no library", "torchvision:resnet50, timm:resnet50"),
        ("", "names no library", "package.module:factory"),
        ("timm:", "names no model", "timm:NAME"),
        (":", "names no library", "torchvision:NAME"),
        ("torchvision:resnet51", "torchvision has no model 'resnet51'", "nearest: resnet50"),
        ("torchvision:zzzzzz", "torchvision has no model 'zzzzzz'", "torchvision.models.list_models()"),
        ("timm:convnext_bas", "timm has no model 'convnext_bas'", "nearest: convnext_base"),
        ("hf:bert-base-uncased", "no configuration at hand", "bert"),
        ("hf:meta-llama/Llama-2-7b-hf", "nothing is downloaded", "(llama)"),
        ("torchvison:resnet50", "no library or module 'torchvison'", "did you mean torchvision:resnet50?"),
        ("absent.package:make", "no library or module 'absent.package'", "PYTHONPATH"),
        ("torch.nn:Liner", "torch.nn has no 'Liner'", "Linear"),
    ],
)
def test_unknown_names_suggest_near_ones(name: str, message: str, hint: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        resolve(name)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision:fasterrcnn_resnet50_fpn", "boxes by their scores"),
        ("torchvision:quantized_resnet18", "quantised"),
        ("torch.nn:Linear", "raised TypeError"),
        ("os:getcwd", "returned str, not a module"),
        ("os:sep", "is str, not a factory"),
    ],
)
def test_models_that_cannot_be_used_say_why(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "package"), [("timm:x", "timm"), ("hf:x", "transformers"), ("torchvision:x", "torchvision")]
)
def test_a_missing_library_says_how_to_install_it(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    real_import = importlib.import_module

    def without(module: str, *args: Any) -> Any:
        if module.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real_import(module, *args)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(InputError) as caught:
        resolve(name)
    assert caught.value.hint == f"pip install {package}"


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "house_models.py").write_text(
        "from torch import nn\n"
        "def plain(): return nn.Linear(4, 2)\n"
        "def with_input(): return nn.Linear(4, 2), (4,)\n"
        "made = nn.Linear(4, 3)\n"
        "class Nested:\n"
        "    build = staticmethod(plain)\n"
        "def broken(): return {}['absent']\n"
    )
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_absent\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("house_models", "needs_more"):
        monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.mark.usefixtures("factories")
def test_factories_return_modules_or_modules_with_input() -> None:
    assert resolve("house_models:plain").input is None
    assert resolve("house_models:with_input").input == (4,)
    assert resolve("house_models:with_input", input=(7, 4)).input == (7, 4)
    assert resolve("house_models:made").model is sys.modules["house_models"].made
    assert isinstance(resolve("house_models:Nested.build").model, torch.nn.Linear)


@pytest.mark.usefixtures("factories")
def test_a_failing_factory_is_the_cause_of_the_error() -> None:
    with pytest.raises(InputError, match="house_models:broken raised KeyError") as caught:
        resolve("house_models:broken")
    assert isinstance(caught.value.__cause__, builtins.KeyError)
    with pytest.raises(InputError, match="a_package_that_is_absent"):
        resolve("needs_more:anything")
