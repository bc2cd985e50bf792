"""One run of the reference loop, as it travels to the process on the device."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpumem.checkpointing import check_fingerprint, fingerprint
from gpumem.errors import InputError
from gpumem.extraction.loop_tracer import LoopTracer
from gpumem.loop import PURE_DTYPES, LoopConfig
from gpumem.validation import weightless
from gpumem.validation.main_module import load_main


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything about the loop but the batch size.

    Attributes:
        model: Name for `gpumem.sources.resolve`, or the module.
        input: Description of the input for `resolve`.
        fingerprint: Structure of the model that the prediction was made for.
        inputs: Tree of `TensorSpec`.
        config: The loop.
        optimizer: As for `gpumem.extract`.
        criterion: `(output, target) -> loss`, or None.
        target: Tree of `TensorSpec` for the target, or None.
        step: The user's own step, or None.
        regions: Checkpointed regions and their options; None without a plan.
        cudnn_enabled: `torch.backends.cudnn.enabled` of the caller.
        default_dtype: `torch.get_default_dtype()` of the caller.
    """

    model: str | nn.Module
    input: Any
    fingerprint: str
    inputs: Any
    config: LoopConfig
    optimizer: Any
    criterion: Any
    target: Any
    step: Any
    regions: Mapping[str, str] | None
    cudnn_enabled: bool
    default_dtype: torch.dtype

    def build(self) -> nn.Module:
        """The model on the host; its weights are zeros unless its factory made them.

        Raises:
            ModelMismatchError: the factory made another model than in the caller's process.
        """
        if isinstance(self.model, nn.Module):
            return weightless.materialised(self.model, self._convert)
        from gpumem.extraction.traceable import traceable
        from gpumem.sources import resolve

        source = resolve(self.model, mode=self.config.mode, input=self.input)
        model, _ = traceable(source.model, self.config.mode)
        check_fingerprint(model, self.fingerprint)
        return weightless.materialised(model, self._convert)

    @property
    def _convert(self) -> torch.dtype | None:
        return PURE_DTYPES.get(self.config.precision)


@dataclass(frozen=True)
class Package:
    """A pickled job.

    Attributes:
        data: The pickle, without weights.
        convert: Dtype of a pure precision.
        main: The caller's program, where the job has something that was defined in it.
    """

    data: bytes
    convert: torch.dtype | None
    main: str | None

    def unpack(self) -> Job:
        """The job, in the process that runs it."""
        if self.main is not None:
            load_main(self.main)
        job: Job = weightless.loads(self.data, self.convert)
        return job


def pack(job: Job) -> Package:
    """Pickle a job.

    Raises:
        InputError: something in it cannot be pickled.
    """
    what = job.model if isinstance(job.model, str) else type(job.model).__name__
    data = weightless.dumps(job, what)
    return Package(data, PURE_DTYPES.get(job.config.precision), _main(data, what))


def _main(data: bytes, what: str) -> str | None:
    """File of the caller's program if the pickle refers to it by name."""
    if b"__main__" not in data or weightless.takes_definitions_along():
        return None
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or not Path(file).is_file():
        raise InputError(
            f"{what} was defined in an interactive session, which the process that runs it cannot import",
            "define it in a file and import it, or pip install cloudpickle",
        )
    return str(Path(file).resolve())


def job_of(
    model: str | nn.Module,
    input: Any,
    tracer: LoopTracer,
    batch: int,
    loop: Mapping[str, Any],
    regions: Any,
    steps: int,
) -> Job:
    """The job of a traced loop.

    Args:
        model: What the caller gave: a name or a module.
        input: The caller's description of the input.
        tracer: What traced it.
        batch: The batch size it was traced at.
        loop: Keywords of `gpumem.extract`.
        regions: Checkpointed regions of a plan, or None.
        steps: Steps to run.
    """
    named = isinstance(model, str)
    question, criterion = tracer.question, tracer.criterion(batch)
    return Job(
        model=model if named else question.model,
        input=input if named else None,
        fingerprint=fingerprint(question.model),
        inputs=question.inputs,
        config=replace(question.config, steps=steps),
        optimizer=loop["optimizer"],
        criterion=criterion.function,
        target=criterion.target,
        step=loop["step"],
        regions=None if regions is None else dict(regions),
        cudnn_enabled=bool(torch.backends.cudnn.enabled),
        default_dtype=torch.get_default_dtype(),
    )
