"""What is validated: small models in the precisions, optimizers, loops and plans that people use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gpumem
from gpumem.validation import Session, Validation
from tests.parity import models
from tests.validation import small

CARD = "rtx3090"


@dataclass(frozen=True)
class Spec:
    """One validation.

    Attributes:
        model: Reference into `tests.parity.models`.
        batch: Batch size.
        loop: Keywords of `gpumem.extract`.
        planned: Whether a plan is validated: the largest batch with checkpoints in what this one takes without.
        guessed: Whether the virtual device has to guess sizes that matter (cuDNN's recurrent layers in training).
    """

    model: str
    batch: int
    loop: Mapping[str, Any] = field(default_factory=dict)
    planned: bool = False
    guessed: bool = False

    @property
    def name(self) -> str:
        """For tables and test ids."""
        words = [f"{key}={getattr(value, '__name__', value)}" for key, value in self.loop.items()]
        return " ".join([self.model, f"b{self.batch}", *words, *(["plan"] if self.planned else [])])


def _train(precision: str = "fp32", optimizer: Any = "adamw", **more: Any) -> dict[str, Any]:
    return {"precision": precision, "optimizer": optimizer, **more}


_INFER = {"mode": "infer"}

SPECS = (
    Spec("tv:resnet18", 4, _train("fp32", "sgd(momentum=0.9)")),
    Spec("tv:resnet18", 5, _train("amp-fp16", "adam")),
    Spec("tv:resnet18", 4, _train("amp-bf16", "sgd(momentum=0.9)", channels_last=True)),
    Spec("tv:resnet18", 4, _train("fp32", "sgd", accumulate=2)),
    Spec("tv:resnet18", 4, _train("bf16", "adamw")),
    Spec("tv:resnet18", 8, _INFER),
    Spec("tv:mobilenet_v3_small", 4, _train("fp32", "rmsprop")),
    Spec("tv:mobilenet_v2", 4, _train("amp-fp16", "sgd(momentum=0.9)", channels_last=True)),
    Spec("tv:mobilenet_v2", 4, _INFER | {"precision": "fp16"}),
    Spec("tv:shufflenet_v2_x0_5", 6, _train("tf32", "adam")),
    Spec("tv:squeezenet1_1", 4, _train("fp32", "adagrad")),
    Spec("tv:efficientnet_b0", 3, _train("amp-bf16", "adamw")),
    Spec("tv:vgg11", 2, _train("fp32", "sgd")),
    Spec("tv:swin_t", 2, _train("amp-fp16", "adamw")),
    Spec("tv:lraspp_mobilenet_v3_large", 2, _train("fp32", "sgd(momentum=0.9)")),
    Spec("unet:plain", 2, _train("fp32", "adamw")),
    Spec("unet:bilinear", 2, _train("amp-fp16", "adamw")),
    Spec("unet:group_norm_attention", 2, _train("amp-bf16", "adamw")),
    Spec("unet:3d", 1, _INFER),
    Spec("hf:vit", 4, _train("amp-bf16", "adamw")),
    Spec("hf:vit", 4, _INFER | {"precision": "bf16"}),
    Spec("hf:gpt2", 4, _train("fp32", "adamw")),
    Spec("hf:gpt2", 7, _train("amp-fp16", "adamw", clip_grad_norm=1.0)),
    Spec("hf:gpt2", 4, _train("amp-bf16", "adamw(fused=True)", accumulate=2)),
    Spec("hf:gpt2", 4, _INFER | {"precision": "bf16"}),
    Spec("hf:bert", 4, _train("fp32", "adamw", zero_grad="zero")),
    Spec("hf:bert", 3, _train("amp-fp16", "adafactor")),
    Spec("hf:bert", 8, _INFER | {"precision": "amp-fp16"}),
    Spec("hf:t5", 2, _train("fp32", "adamw")),
    Spec("hf:llama", 2, _train("bf16", "adamw")),
    Spec("hf:qwen2", 2, _train("amp-bf16", "sgd")),
    Spec("nn:lstm", 8, _train("fp32", "adam"), guessed=True),
    Spec("nn:lstm", 8, _train("amp-fp16", "adam"), guessed=True),
    Spec("nn:gru_bidirectional", 8, _train("fp32", "sgd"), guessed=True),
    Spec("nn:lstm", 8, _INFER),
    Spec("nn:lstm_cell", 4, _train("fp32", "adam")),
    Spec("nn:transformer", 4, _train("amp-bf16", "adamw", host_reads="zeros")),
    Spec("nn:mlp", 64, _train("fp32", ("adam", {"amsgrad": True}))),
    Spec("nn:mlp", 64, _train("fp32", small.own_optimizer)),
    Spec("nn:mlp", 33, _train("fp32", "adam", step=small.own_step)),
    Spec("misc:tied_weights", 4, _train("fp32", "adamw")),
    Spec("misc:frozen_body", 4, _train("fp32", "adamw")),
    Spec("misc:lora", 4, _train("amp-bf16", "adamw")),
    Spec("misc:checkpoint", 4, _train("fp32", "sgd")),
    Spec("tv:resnet18", 32, _train("fp32", "sgd(momentum=0.9)"), planned=True),
    Spec("tv:vit_b_32", 32, _train("amp-bf16", "sgd"), planned=True),
    Spec("hf:gpt2", 16, _train("amp-bf16", "adamw"), planned=True),
    Spec("hf:bert", 32, _train("fp32", "adamw"), planned=True),
    Spec("unet:plain", 4, _train("amp-fp16", "adamw"), planned=True),
)


def run(session: Session, spec: Spec) -> Validation:
    """Validate one."""
    loaded = models.load(spec.model)
    if not spec.planned:
        return session.validate(loaded.model, loaded.inputs, batch=spec.batch, **spec.loop)
    whole = gpumem.estimate(loaded.model, loaded.inputs, batch=spec.batch, gpu=CARD, **spec.loop)
    budget = whole.device_peak.high
    plan = gpumem.plan(loaded.model, loaded.inputs, budget=budget, objective="batch", gpu=CARD, **spec.loop)
    if not plan.regions:
        raise AssertionError(f"{spec.name}: the plan checkpoints nothing")
    return session.validate(plan, loaded.inputs, model=loaded.model)
