"""Models that the planner's benchmarks plan for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
import transformers
from torch import nn

from gpumem.extraction.keywords import loop_keywords
from gpumem.planning.loops import PlannedLoop

GPU: dict[str, Any] = {"gpu": "a100-80gb"}


@dataclass(frozen=True)
class Case:
    """A model with a loop, planned for one batch size."""

    name: str
    make: Callable[[], nn.Module]
    input: Any
    batch: int
    loop: dict[str, Any]

    def planned(self, *, offload: bool = False) -> PlannedLoop:
        """Trace it in all variants."""
        return PlannedLoop(self.make(), self.input, (self.batch,), loop_keywords(self.loop), offload=offload)


def on_meta(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The same model without weights."""

    def made() -> nn.Module:
        with torch.device("meta"):
            return make()

    return made


def gpt2(layers: int) -> Case:
    """GPT-2 with 512 tokens, batch 8."""
    config = transformers.GPT2Config(n_layer=layers, use_cache=False)
    tokens = dict.fromkeys(("input_ids", "labels"), ((512,), torch.int64))
    make = on_meta(lambda: transformers.GPT2LMHeadModel(config))
    return Case(f"GPT-2, {layers} layers", make, tokens, 8, {"precision": "amp-bf16", "optimizer": "adamw"})


def image(name: str, batch: int, **loop: Any) -> Case:
    """A torchvision model on 224x224 images."""
    return Case(name, on_meta(getattr(torchvision.models, name)), (3, 224, 224), batch, loop)
