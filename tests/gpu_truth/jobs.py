"""A case as the job that `gpumem.validation` runs on a device, without a trace: nothing here predicts anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gpumem.checkpointing import candidate_regions, fingerprint
from gpumem.extraction.criterion import cross_entropy, model_loss
from gpumem.extraction.inputs import TensorSpec, parse_input
from gpumem.extraction.traceable import traceable
from gpumem.loop import LoopConfig
from gpumem.sources import resolve
from gpumem.validation.job import Job
from tests.gpu_truth.cases import Case

STEPS = 3
"""The first makes the optimizer's state, the second starts with what the first left, the third is the second again."""


def built(case: Case) -> tuple[nn.Module, Any]:
    """The model of a case, on the meta device, and its input's description.

    Raises:
        GpumemError: the library is not installed or has no such model.
    """
    source = resolve(case.model, mode=case.mode, input=case.input or None)
    return traceable(source.model, case.mode)[0], source.input


def regions_of(case: Case, model: nn.Module) -> Mapping[str, str] | None:
    """The case's checkpoint plan: every block of the model."""
    if not case.checkpoint:
        return None
    found = {region.name: case.checkpoint for region in candidate_regions(model)}
    assert found, f"{case.name} has nothing to checkpoint"
    return found


def job_of(case: Case, steps: int = STEPS) -> Job:
    """The job of a case.

    Raises:
        GpumemError: the model cannot be built.
    """
    model, description = built(case)
    inputs = parse_input(description)
    return Job(
        model=model,
        input=None,
        fingerprint=fingerprint(model),
        inputs=inputs,
        config=LoopConfig(
            mode=case.mode,
            precision=case.precision,
            channels_last=case.channels_last,
            zero_grad=case.zero_grad,
            accumulate=case.accumulate,
            clip_grad_norm=case.clip_grad_norm,
            steps=steps,
        ),
        optimizer=case.optimizer,
        criterion=model_loss if case.loss == "own" else cross_entropy,
        target=None if case.mode == "infer" else _target(case, inputs),
        step=None,
        regions=regions_of(case, model),
        cudnn_enabled=True,
        default_dtype=torch.float32,
    )


def _target(case: Case, inputs: Any) -> TensorSpec | None:
    if case.loss == "own":
        return None
    return TensorSpec(() if case.loss == "classes" else inputs.shape[1:], torch.int64)
