"""Recipes of `measured.csv`, grade A, as calls of gpumem.

A recipe is found by the row's library and model text; one that cannot be expressed raises `InexpressibleError` with the
reason, which the table shows instead of a number.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.truth import loops
from benchmarks.truth.rows import Row
from torch import nn
from torch.nn import functional

from gpumem import api
from gpumem._core import ModelSpec, Report


class InexpressibleError(Exception):
    """The row's recipe cannot be said in gpumem's terms."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one row is predicted.

    Attributes:
        model: The module, on meta.
        input: As for `gpumem.extract`.
        extract: Further keywords of `gpumem.extract`.
        batch: Batch size.
        gpu: The card, or the one assumed.
        stack: The software, or the one assumed.
        quantity: Attribute of the report that the row measured.
        assumed: What the row does not state.
    """

    model: nn.Module
    input: Any
    extract: dict[str, Any]
    batch: int
    gpu: str
    stack: str
    quantity: str
    assumed: str = ""

    def trace(self) -> ModelSpec:
        """The spec of the recipe's loop."""
        return api.extract(self.model, self.input, gpu=self.gpu, **self.extract)

    def estimate(self, spec: ModelSpec) -> Report:
        """The report for the row's batch and target."""
        return spec.estimate(self.batch, gpu=self.gpu, stack=self.stack)


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a module without memory for its weights."""
    with torch.device("meta"):
        return build()


def _sizes(row: Row) -> tuple[int, ...]:
    """`3x224x224` at the start of the input's description (or behind `96 images `)."""
    found = re.search(r"(\d+)x(\d+)x(\d+)", row["input"])
    if found is None:
        raise InexpressibleError(f"input '{row['input']}' has no shape")
    return tuple(int(size) for size in found.groups())


# --- memsave_torch: forward-only peaks -------------------------------------------------------------------------------


def memsave(row: Row) -> Recipe:
    """Forward and loss, no backward; the card is not stated (27 GB: a 40 GB card or larger)."""
    from torchvision import models

    name = re.search(r"models\.(\w+)\(\)", row["model"])
    assert name is not None
    frozen = "only the input requires grad" in row["model"]
    return Recipe(
        model=on_meta(lambda: models.get_model(name[1])),
        input=_sizes(row),
        extract={
            "step": loops.forward_only_for_input if frozen else loops.forward_only,
            "target": ((), torch.int64),
        },
        batch=int(row["batch_per_gpu"]),
        gpu="a100-40gb",
        stack="torch-2.4+cu121",
        quantity="allocated_peak",
        assumed="A100 40 GB, torch 2.4",
    )


# --- torchvision's segmentation reference ----------------------------------------------------------------------------


def _segmentation_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    losses = [functional.cross_entropy(output[name], target, ignore_index=255) for name in ("out", "aux")]
    return losses[0] + 0.5 * losses[1]


def segmentation_reference(row: Row) -> Recipe:
    """`references/segmentation/train.py` on one rank; its synchronised batch norm is taken for an ordinary one."""
    from torchvision import models

    return Recipe(
        model=on_meta(lambda: models.get_model("fcn_resnet50", weights_backbone=None, num_classes=21, aux_loss=True)),
        input=_sizes(row),
        extract={
            "step": loops.DistributedStep(_segmentation_loss, keep_output=True),
            "target": (_sizes(row)[1:], torch.int64),
            "optimizer": ("sgd", {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-4, "foreach": False}),
        },
        batch=int(row["batch_per_gpu"]),
        gpu="v100-32gb",
        stack="torch-1.10+cu113",
        quantity="allocated_peak",
        assumed="V100; SyncBatchNorm as BatchNorm",
    )


# --- MMAction2's temporal segment networks ---------------------------------------------------------------------------


class TemporalSegmentNetwork(nn.Module):
    """ResNet-50 on every segment of a video, average pooling, mean over the segments, dropout and a classifier."""

    def __init__(self, segments: int, channels: int, classes: int) -> None:
        super().__init__()
        from torchvision import models

        backbone = models.resnet50(num_classes=1)
        if channels != 3:
            backbone.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        backbone.fc = nn.Identity()
        self.backbone = backbone
        self.segments = segments
        self.dropout = nn.Dropout(0.4)
        self.classifier = nn.Linear(2048, classes)

    def forward(self, videos: torch.Tensor) -> torch.Tensor:
        """Scores of `[videos, segments, channels, height, width]`."""
        features: torch.Tensor = self.backbone(videos.flatten(0, 1))
        consensus = features.unflatten(0, (-1, self.segments)).mean(dim=1)
        scores: torch.Tensor = self.classifier(self.dropout(consensus))
        return scores


def mmaction(row: Row) -> Recipe:
    """One rank of MMDistributedDataParallel; MMCV zeroes gradients between forward and backward."""
    channels, height, width = _sizes(row)
    segments = re.search(r"x (\d+) segments", row["input"])
    classes = re.search(r"fc\(2048->(\d+)\)", row["model"])
    clip = re.search(r"'max_norm': (\d+)", row["optimizer"])
    decay = re.search(r"wd ([\d.e-]+)", row["optimizer"])
    assert segments is not None
    assert classes is not None
    assert decay is not None
    return Recipe(
        model=on_meta(lambda: TemporalSegmentNetwork(int(segments[1]), channels, int(classes[1]))),
        input=(int(segments[1]), channels, height, width),
        extract={
            "step": loops.DistributedStep(functional.cross_entropy, None if clip is None else float(clip[1])),
            "target": ((), torch.int64),
            "optimizer": ("sgd", {"lr": 0.01, "momentum": 0.9, "weight_decay": float(decay[1]), "foreach": False}),
        },
        batch=int(row["batch_per_gpu"]),
        gpu="v100-32gb",
        stack="torch-1.8+cu102",
        quantity="allocated_peak",
        assumed="V100 32 GB, torch 1.8; DDP buckets",
    )


# --- transformers ----------------------------------------------------------------------------------------------------

_TOKENS = torch.int64


def optimum_benchmark(row: Row) -> Recipe:
    """Trainer steps of 2 x 16 tokens; measured on ROCm, predicted for CUDA."""
    import transformers

    causal = "gpt2" in row["model"]
    config = transformers.GPT2Config() if causal else transformers.BertConfig()
    config._attn_implementation = "eager"
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    inputs = dict.fromkeys(("input_ids", "attention_mask", "labels"), ((16,), _TOKENS))
    return Recipe(
        model=on_meta(lambda: auto.from_config(config)),
        input=inputs,
        extract={"optimizer": "adamw", "clip_grad_norm": 1.0},
        batch=int(row["batch_per_gpu"]),
        gpu="a100-80gb",
        stack="torch-2.3+cu121",
        quantity="reserved_peak" if "reserved" in row["quantity"] else "allocated_peak",
        assumed="CUDA card for a ROCm one",
    )


def _enable_checkpointing(model: Any) -> None:
    model.gradient_checkpointing_enable({"use_reentrant": True})


def bert_large_anatomy(row: Row) -> Recipe:
    """The memory anatomy of transformers' documentation: bert-large on a V100, device memory as NVML shows it."""
    import transformers

    config = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    config._attn_implementation = "eager"
    inputs: dict[str, Any] = dict.fromkeys(("input_ids", "labels"), ((512,), _TOKENS))
    inputs["labels"] = ((), _TOKENS)
    # Trainer's default then was transformers' own for-loop AdamW; gradients were zeroed, not freed.
    extract: dict[str, Any] = {"optimizer": ("adamw", {"foreach": False}), "zero_grad": "zero", "clip_grad_norm": 1.0}
    batch = 1
    if "model loaded" in row["model"]:
        # No step: the peak of an inference on one token stands for the weights.
        inputs, extract = {"input_ids": ((1,), _TOKENS)}, {"mode": "infer"}
    else:
        batch = int(row["batch_per_gpu"])
        extract["accumulate"] = 4 if "accumulation 4" in row["model"] or "accum" in row["model"] else 1
        extract["precision"] = "amp-fp16" if "fp16" in row["precision"] else "fp32"
    model = on_meta(lambda: transformers.BertForSequenceClassification(config))
    if "gradient checkpointing" in row["model"]:
        _enable_checkpointing(model)
    return Recipe(
        model=model,
        input=inputs,
        extract=extract,
        batch=batch,
        gpu="v100-16gb",
        stack="torch-1.10+cu113",
        quantity="device_peak",
        assumed="torch's AdamW for transformers' own",
    )


def carma_bert(row: Row) -> Recipe:
    """BertForMaskedLM with AdamW at 512 padded tokens."""
    import transformers

    config = transformers.BertConfig(vocab_size=28996)
    inputs = dict.fromkeys(("input_ids", "attention_mask", "labels"), ((512,), _TOKENS))
    model = on_meta(lambda: transformers.BertForMaskedLM(config))
    return carma(row, model, inputs)


# --- CARMA and GPUMemNet: nvidia-smi on an A100 ----------------------------------------------------------------------


def carma_vision(row: Row) -> Recipe:
    """A torchvision or timm classifier with Adam or AdamW."""
    if row["library"] == "timm":
        import timm

        name = re.search(r"create_model\('(\w+)'\)", row["model"])
        words = row["model"].split()
        classes = 100 if "num_classes=100" in row["model"] else 1000
        model_name = name[1] if name is not None else words[1]
        model = on_meta(lambda: timm.create_model(model_name, num_classes=classes))
    else:
        from torchvision import models

        found = re.search(r"models\.(\w+)\((.*)\)", row["model"])
        assert found is not None
        extra = {"aux_logits": False, "init_weights": False} if found[2] else {}
        model = on_meta(lambda: models.get_model(found[1], **extra))
    return carma(row, model, _sizes(row))


def carma(row: Row, model: nn.Module, inputs: Any) -> Recipe:
    """The reference loop; the torch version is not pinned, so the release of the time is assumed."""
    recent = "2025" in row["torch_version"]
    return Recipe(
        model=model,
        input=inputs,
        extract={"optimizer": row["optimizer"].lower()},
        batch=int(row["batch_per_gpu"]),
        gpu="a100-40gb",
        stack="torch-2.8+cu128" if recent else "torch-2.4+cu121",
        quantity="device_peak",
        assumed="torch 2.8" if recent else "torch 2.4",
    )


def recipe(row: Row) -> Recipe:
    """The recipe of a row.

    Raises:
        InexpressibleError: gpumem has no words for it.
    """
    source, library = row["source"], row["library"]
    if "memsave_torch" in source:
        return memsave(row)
    if library.startswith("torchvision references/segmentation"):
        return segmentation_reference(row)
    if library.startswith("mmaction2"):
        return mmaction(row)
    if "optimum-benchmark" in library:
        return optimum_benchmark(row)
    if "bert-large-uncased" in row["model"]:
        return bert_large_anatomy(row)
    if "BertForMaskedLM" in row["model"]:
        return carma_bert(row)
    if "CARMA" in source or "GPUMemNet" in source:
        return carma_vision(row)
    raise InexpressibleError(f"no recipe for {library}: {row['model']}")
