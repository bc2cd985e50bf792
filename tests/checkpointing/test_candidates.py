"""Which regions are found in models of torchvision, timm, transformers and in plain torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gpumem.checkpointing import Candidates, apply_regions, candidate_regions
from gpumem.checkpointing.options import CHECKPOINT
from gpumem.checkpointing.places import find_place
from tests.checkpointing.models import CASES, Convolutional

_LIBRARY = "its models are tested; environments of old versions of torch are made without"


def _vision(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        models = pytest.importorskip("torchvision.models", reason=_LIBRARY)
        return getattr(models, name)()  # type: ignore[no-any-return]

    return make


def _timm(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        return pytest.importorskip("timm", reason=_LIBRARY).create_model(name)  # type: ignore[no-any-return]

    return make


def _hugging(kind: str, config: str, **keywords: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        library = pytest.importorskip("transformers", reason=_LIBRARY)
        return getattr(library, kind)(getattr(library, config)(**keywords))  # type: ignore[no-any-return]

    return make


def _unet() -> nn.Module:
    from tests.parity.models.unet import _UNet

    return _UNet()


# Model: how many regions there are, how many different structures, a pattern for the first and for all names, and parts
# of one of them.
FOUND: dict[str, tuple[Callable[[], nn.Module], int, int, str, tuple[str, ...]]] = {
    "resnet50": (_vision("resnet50"), 16, 8, r"layer\d\.\d", ()),
    "densenet121": (_vision("densenet121"), 61, 33, r"features\.(denseblock\d\.denselayer\d+|transition\d)", ()),
    "vit_b_16": (_vision("vit_b_16"), 12, 1, r"encoder\.layers\.encoder_layer_\d+", ("self_attention", "mlp")),
    "swin_t": (_vision("swin_t"), 16, 8, r"features\.\d(\.\d)?", ("attn", "mlp")),
    "convnext_tiny": (_vision("convnext_tiny"), 22, 8, r"features\.\d(\.\d)?", ("block",)),
    "efficientnet_b0": (_vision("efficientnet_b0"), 18, 14, r"features\.\d(\.\d)?", ("block",)),
    "mobilenet_v3_large": (_vision("mobilenet_v3_large"), 18, 15, r"features\.\d+|classifier", ("block",)),
    "vgg16": (_vision("vgg16"), 5, 5, r"features\[\d+:\d+\]", ()),
    "timm swin": (_timm("swin_tiny_patch4_window7_224"), 12, 5, r"layers\.\d\.blocks\.\d", ("attn", "mlp")),
    "timm resnet": (_timm("resnet26"), 8, 8, r"layer\d\.\d", ()),
    "unet": (_unet, 7, 7, r"(down|join)\.\d|middle", ()),
    "gpt2": (
        _hugging("GPT2LMHeadModel", "GPT2Config", n_layer=3, n_embd=48),
        3, 1, r"transformer\.h\.\d", ("attn", "mlp"),
    ),
    "bert": (
        _hugging("BertForMaskedLM", "BertConfig", num_hidden_layers=3, hidden_size=48),
        5, 3, r"bert\.embeddings|bert\.encoder\.layer\.\d|cls", ("attention", "intermediate", "output"),
    ),
    "t5": (
        _hugging("T5ForConditionalGeneration", "T5Config", num_layers=2, d_model=48),
        4, 4, r"(encoder|decoder)\.block\.\d", ("layer.0", "layer.1", "layer.2"),
    ),
    "llama": (
        _hugging("LlamaForCausalLM", "LlamaConfig", num_hidden_layers=3, hidden_size=64, intermediate_size=64),
        3, 1, r"model\.layers\.\d", ("self_attn", "mlp"),
    ),
    "whisper": (
        _hugging("WhisperForConditionalGeneration", "WhisperConfig", encoder_layers=2, decoder_layers=2),
        4, 2, r"model\.(encoder|decoder)\.layers\.\d", ("self_attn", "encoder_attn"),
    ),
    "nn.Transformer": (
        lambda: nn.Transformer(16, 4, 2, 3, 32), 5, 2, r"(encoder|decoder)\.layers\.\d", ("self_attn", "multihead_attn")
    ),
}  # fmt: skip


def _overlap(first: str, second: str) -> bool:
    return first == second or first.startswith((f"{second}.", f"{second}[")) or second.startswith(f"{first}.")


def _check(model: nn.Module, found: Candidates) -> None:
    names = [region.name for region in found]
    assert len(set(names)) == len(names)
    order = {name: index for index, (name, _) in enumerate(model.named_modules())}
    positions = [order[name.partition("[")[0]] for name in names]
    assert positions == sorted(positions)
    assert not [(a, b) for a in names for b in names if a != b and _overlap(a, b)]
    for region in found:
        place = find_place(model, region.name)
        assert any(True for _ in place.module.parameters())
        assert all(part.name.startswith(f"{region.name}.") for part in region.parts)
    # All at once, and all parts at once.
    apply_regions(model, dict.fromkeys(names, CHECKPOINT)).undo()
    apply_regions(model, {part.name: CHECKPOINT for region in found for part in region.parts}).undo()


@pytest.mark.parametrize("name", FOUND)
def test_regions_of_known_models(name: str) -> None:
    make, count, kinds, pattern, parts = FOUND[name]
    with torch.device("meta"):
        model = make()
    found = candidate_regions(model)
    assert len(found) == count
    assert len({region.alike for region in found}) == kinds
    assert [region.name for region in found if not re.fullmatch(pattern, region.name)] == []
    if parts:
        assert parts in [tuple(part.name[len(region.name) + 1 :] for part in region.parts) for region in found]
    assert bool(found.reason) == (name == "vgg16")
    _check(model, found)


@pytest.mark.parametrize("name", CASES)
def test_regions_of_small_models(name: str) -> None:
    model = CASES[name].make()
    _check(model, candidate_regions(model))


def test_attributes_of_one_class_are_blocks() -> None:
    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3)
            self.down1, self.down2 = Double(), Double()
            self.middle = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
            self.up1 = Double()

    for kind in (Double, Net):
        kind.forward = lambda self, x: x
    assert [region.name for region in candidate_regions(Net())] == ["down1", "down2", "middle", "up1"]


def test_models_without_blocks_say_so() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    none = candidate_regions(layers)
    assert (len(none), none.reason) == (
        0,
        "Sequential has no repeated blocks and no parts made of several layers",
    )
    parts = candidate_regions(nn.Sequential(layers, nn.Linear(4, 2), nn.LSTM(4, 4)))
    assert [region.name for region in parts] == ["0", "2"]
    assert parts.reason == "no repeated blocks: the direct parts of the model"
    assert len(candidate_regions(nn.Linear(2, 2))) == 0


def test_a_shared_block_is_named_once() -> None:
    block = Convolutional().blocks[0]
    model = nn.Sequential(nn.Conv2d(3, 8, 1), block, block, Convolutional().blocks[1])
    assert [region.name for region in candidate_regions(model)] == ["1", "3"]
