"""The runs published with xMem (`xmem_runs.csv`, `xmem_recipe.md`) as models and keywords of gpumem."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.truth.loops import ProfiledStep
from benchmarks.truth.recipes import on_meta
from benchmarks.truth.rows import Row
from torch import nn

TOKENS = 128
"""Lines are cut there, and a batch of 20 or more has one as long with near certainty (xmem_recipe.md, uncertain 5)."""

POSITIONS = {"POS0": "start", "POS1": "backward", "POS2": "start"}
"""At the end of a step (POS2) is the same as at the start."""

UNSTATED = "POS1"
"""Generation B does not say; the stored code passes nothing and defaults to it (uncertain 1)."""

_GPT2: dict[str, dict[str, Any]] = {
    "openai-community/gpt2": {},
    "distilbert/distilgpt2": {"n_layer": 6},
    "cerebras/Cerebras-GPT-111M": {"n_layer": 10, "n_positions": 2048, "n_inner": 3072, "activation_function": "gelu"},
}
_OPT: dict[str, dict[str, Any]] = {
    "facebook/opt-125m": {"hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072, "num_attention_heads": 12},
    "facebook/opt-350m": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "ffn_dim": 4096,
        "num_attention_heads": 16,
        "word_embed_proj_dim": 512,
        "do_layer_norm_before": False,
    },
}


@dataclass(frozen=True)
class Run:
    """One row.

    Attributes:
        model: The module, on meta.
        input: As for `gpumem.extract`.
        keywords: Further keywords of `gpumem.extract`.
        batch: Batch size.
        gpu: The card's profile.
        position: Where gradients are zeroed.
    """

    model: nn.Module
    input: Any
    keywords: dict[str, Any]
    batch: int
    gpu: str
    position: str


def run_of(row: Row, position: str | None = None) -> Run:
    """A row's run.

    Args:
        row: Of `xmem_runs.csv`.
        position: Where gradients are zeroed; what the row says when None.
    """
    position = position or row["zero_grad_pos"] or UNSTATED
    keywords: dict[str, Any] = {
        "optimizer": (row["optimizer"].lower(), {"lr": 1e-3}),
        "step": ProfiledStep(POSITIONS[position]),
    }
    if row["kind"] == "cnn":
        model, given = _vision(row["model_constructor"]), (3, 86, 86)
        keywords["target"] = ((), torch.int64)
    else:
        model = _language(row["model"])
        given = dict.fromkeys(("input_ids", "attention_mask", "labels"), ((TOKENS,), torch.int64))
    gpu = "rtx3060" if "3060" in row["gpu"] else "rtx4060"
    return Run(model, given, keywords, int(row["batch"]), gpu, position)


def _vision(constructor: str) -> nn.Module:
    from torchvision import models

    found = re.fullmatch(r"torchvision\.models\.(\w+)\((.*)\)", constructor)
    assert found is not None, constructor
    classes = {"num_classes": 10} if "num_classes=10" in found[2] else {}
    if found[1] == "MNASNet":
        return on_meta(lambda: models.MNASNet(alpha=1.0, **classes))
    if found[1].startswith("regnet"):
        # Their widths are computed with tensors.
        return models.get_model(found[1], **classes)
    return on_meta(lambda: models.get_model(found[1], **classes))


def _language(name: str) -> nn.Module:
    import transformers

    if name in _GPT2:
        return on_meta(lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**_GPT2[name])))
    if name in _OPT:
        return on_meta(lambda: transformers.OPTForCausalLM(transformers.OPTConfig(**_OPT[name])))
    if name == "EleutherAI/gpt-neo-125M":
        config = transformers.GPTNeoConfig(
            hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]]
        )
        return on_meta(lambda: transformers.GPTNeoForCausalLM(config))
    assert name == "t5-base", name
    t5 = transformers.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)
    return on_meta(lambda: transformers.T5ForConditionalGeneration(t5))
