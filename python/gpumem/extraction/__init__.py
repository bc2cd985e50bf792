"""Extraction: from a `torch.nn.Module` to a `ModelSpec`, on meta tensors, without a GPU.

`extract` is the only entry. What it runs is the reference loop (`gpumem.loop`) under `gpumem.extraction.trace`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gpumem._core import ModelSpec, find_gpu
from gpumem.errors import BatchDependentError, ExtractionError, GpumemError, InputError
from gpumem.extraction.criterion import ChosenCriterion, choose_criterion
from gpumem.extraction.inputs import TensorSpec, describe, parse_input
from gpumem.extraction.optimizer import optimizer_factory
from gpumem.extraction.options import check_batches, check_options
from gpumem.extraction.recorder import Recorder
from gpumem.extraction.target import KernelTarget
from gpumem.extraction.trace import Tracer
from gpumem.extraction.traceable import traceable
from gpumem.loop import PURE_DTYPES, Criterion, LoopConfig, Step

# Never 1: a dimension of size 1 changes contiguity and memory formats. The last one checks the polynomials; it is
# beyond 64, so that batches padded to a power of two up to that, or cut into chunks of it, are noticed.
TRACED_BATCHES = (2, 3, 67)
# A quadratic through three points is confirmed by a fourth.
QUADRATIC_CHECK_BATCH = 7
# The first step creates optimizer state, the second starts with the first one's leftovers and is the steady state.
TRACED_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class _Question:
    """Everything about the loop except the batch size, checked."""

    model: nn.Module
    inputs: Any
    config: LoopConfig
    target: KernelTarget
    make_optimizer: Callable[[Any], torch.optim.Optimizer] | None
    optimizer_text: str
    criterion: Criterion | None
    criterion_target: Any
    step: Step | None
    assumptions: tuple[str, ...]
    allow_host_reads: bool


def extract(
    model: nn.Module,
    input: Any = None,
    *,
    mode: str = "train",
    precision: str = "fp32",
    optimizer: Any = "sgd",
    criterion: Criterion | None = None,
    target: Any = None,
    step: Step | None = None,
    channels_last: bool = False,
    zero_grad: str = "none",
    accumulate: int = 1,
    clip_grad_norm: float | None = None,
    gpu: str | None = None,
    batches: Sequence[int] = TRACED_BATCHES,
    host_reads: str = "error",
) -> ModelSpec:
    """Trace a training or inference loop of `model` and return what it asks of the CUDA allocator at any batch size.

    Nothing is computed, no GPU is touched, no weight is copied, and the model is left as it was.

    Args:
        model: Any module, on any device; its weights are not read.
        input: Shape of one sample `(3, 224, 224)`, a `TensorSpec`, an example tensor (first dimension = batch), a
            tuple of those (several inputs) or a mapping of argument names to those. None: taken from what the model
            says about itself (timm, torchvision, transformers), and reported.
        mode: `train` or `infer`.
        precision: `fp32`, `tf32`, `amp-fp16`, `amp-bf16`, `fp16` or `bf16`.
        optimizer: Name in `torch.optim`, `(name or class, kwargs)`, a class, or a function `params -> Optimizer`.
        criterion: `(output, target) -> loss`; None chooses by the output and reports it.
        target: Description of the target like `input`, for a criterion that needs one.
        step: Your own `step(model, optimizer, batch)`, traced as it is; `batch` is the inputs, or `(inputs, target)`
            when `target` is given.
        channels_last: Model and image inputs in channels_last.
        zero_grad: `none` (set_to_none) or `zero`.
        accumulate: Micro-batches per optimizer step; the batch size is that of one micro-batch.
        clip_grad_norm: Maximal norm for `clip_grad_norm_`, or None.
        gpu: Card whose kernels are chosen where that depends on the compute capability (attention); default 8.6.
        batches: Batch sizes to trace. One size gives a spec for that size only.
        host_reads: `error` raises when the model needs a value that a trace does not have; `zeros` answers zeros,
            which the report lists.

    Returns:
        A `ModelSpec`; its methods need no torch.

    Raises:
        InputError: an argument that cannot be meant, an unknown input, a module that cannot be traced or has nothing to
            train, a criterion or step that is no training step.
        UnknownNameError: an unknown precision, mode, optimizer or GPU.
        DataDependentError: the model needs values (`.item()`, boolean masks, `nonzero`).
        BatchDependentError: what is allocated is no polynomial in the batch size, or in another order.
        ExtractionError: anything else the model raised; that is the cause.
    """
    question = _question(
        model,
        input,
        mode=mode,
        precision=precision,
        optimizer=optimizer,
        criterion=criterion,
        target=target,
        step=step,
        channels_last=channels_last,
        zero_grad=zero_grad,
        accumulate=accumulate,
        clip_grad_norm=clip_grad_norm,
        gpu=gpu,
        host_reads=host_reads,
    )
    return _extract(question, check_batches(batches))


def _question(model: nn.Module, description: Any, **options: Any) -> _Question:
    check_options(options)
    model, assumptions = traceable(model, options["mode"])
    if description is None:
        from gpumem.sources import guess_input

        guess = guess_input(model, mode=options["mode"])
        if guess is None:
            raise InputError(
                f"the input of {type(model).__name__} is unknown",
                "pass the shape of one sample: input=(3, 224, 224), for token ids ((128,), torch.int64), or a mapping "
                "of argument names to those; on the command line --input 3,224,224 or --input 128:int64",
            )
        description, text = guess
        assumptions.append(text)
    make_optimizer, optimizer_text = None, "none"
    if options["mode"] == "train":
        make_optimizer, optimizer_text = optimizer_factory(options["optimizer"])
    target = KernelTarget()
    if options["gpu"] is not None:
        target = replace(target, capability=_capability(options["gpu"]))
    return _Question(
        model=model,
        inputs=parse_input(description),
        config=LoopConfig(
            mode=options["mode"],
            precision=options["precision"],
            channels_last=options["channels_last"],
            zero_grad=options["zero_grad"],
            accumulate=options["accumulate"],
            clip_grad_norm=options["clip_grad_norm"],
            steps=TRACED_STEPS,
        ),
        target=target,
        make_optimizer=make_optimizer,
        optimizer_text=optimizer_text,
        criterion=options["criterion"],
        criterion_target=None if options["target"] is None else parse_input(options["target"]),
        step=options["step"],
        assumptions=tuple(assumptions),
        allow_host_reads=options["host_reads"] == "zeros",
    )


def _capability(gpu: str) -> tuple[int, int]:
    return find_gpu(gpu).capability


def _extract(question: _Question, batches: tuple[int, ...]) -> ModelSpec:
    try:
        return _trace_and_assemble(question, batches)
    except GpumemError:
        raise
    except Exception as error:
        raise ExtractionError(
            f"{type(question.model).__name__} could not be traced with input {describe(question.inputs)}: "
            f"{type(error).__name__}: {error}",
            "the exception above is the cause",
        ) from error


def _trace_and_assemble(question: _Question, batches: tuple[int, ...]) -> ModelSpec:
    tracer = Tracer(
        question.model,
        question.inputs,
        question.config,
        question.target,
        question.make_optimizer,
        question.step,
        allow_host_reads=question.allow_host_reads,
    )
    chosen = _criterion(question, tracer, batches[0])
    recorders = [tracer.run(batch, chosen.function, chosen.target) for batch in batches]
    about = _about(question, chosen, recorders[0])
    try:
        return _assemble(about, tracer.layer_kinds, recorders, batches)
    except BatchDependentError:
        if QUADRATIC_CHECK_BATCH in batches or len(batches) < len(TRACED_BATCHES):
            raise
        extra = tracer.run(QUADRATIC_CHECK_BATCH, chosen.function, chosen.target)
        return _assemble(about, tracer.layer_kinds, [*recorders, extra], (*batches, QUADRATIC_CHECK_BATCH))


def _criterion(question: _Question, tracer: Tracer, batch: int) -> ChosenCriterion:
    if question.config.mode == "infer":
        return ChosenCriterion(None, None, "none")
    if question.step is not None:
        return ChosenCriterion(None, question.criterion_target, "inside your step function")
    if question.criterion is not None:
        name = getattr(question.criterion, "__qualname__", type(question.criterion).__name__)
        target = question.criterion_target
        return ChosenCriterion(question.criterion, TensorSpec((), torch.int64) if target is None else target, name)
    output = tracer.probe(batch)
    chosen = choose_criterion(output, batch)
    if chosen is None:
        kind = f"a tensor of {output.dtype}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(
            f"no loss can be chosen: the model returns {kind}, in which there is no floating-point tensor",
            "pass criterion=lambda output, target: ... returning a scalar, or mode='infer'",
        )
    return chosen


def _about(question: _Question, chosen: ChosenCriterion, recorder: Recorder) -> dict[str, Any]:
    assumptions = list(question.assumptions)
    if question.config.mode == "train" and question.criterion is None and question.step is None:
        assumptions.append(f"loss: {chosen.description}")
    kept = {str(p.dtype).removeprefix("torch.") for p in question.model.parameters() if p.is_floating_point()}
    if question.config.precision not in PURE_DTYPES and kept - {"float32"}:
        assumptions.append(f"parameters stay as the model has them: {', '.join(sorted(kept))}")
    assumptions += [note for note in recorder.notes if note not in assumptions]
    major, minor = question.target.capability
    return {
        "model": type(question.model).__name__,
        "input": describe(question.inputs),
        "mode": question.config.mode,
        "precision": question.config.precision,
        "optimizer": question.optimizer_text,
        "criterion": chosen.description,
        "torch": torch.__version__,
        "capability": f"{major}.{minor}",
        "depends_on_capability": recorder.depends_on_capability,
        "assumptions": assumptions,
        "unverified_ops": sorted(recorder.unverified),
        "host_reads": sorted({f"{op} in '{recorder.layers[layer]}'" for op, layer in recorder.host_reads}),
    }


def _assemble(
    about: dict[str, Any], kinds: Sequence[str], recorders: Sequence[Recorder], batches: Sequence[int]
) -> ModelSpec:
    first = recorders[0]
    structure = {
        "about": json.dumps(about),
        "ops": first.ops,
        "layers": list(zip(first.layers, kinds, strict=True)),
        "origins": first.origins,
        "categories": list(first.categories.items()),
        "formulas": [(kind, op, layer, phase) for kind, _, op, layer, phase in first.formulas],
    }
    traces = [
        (batch, rec.events, rec.sizes, [arguments for _, arguments, *_ in rec.formulas], rec.flops_by_layer())
        for batch, rec in zip(batches, recorders, strict=True)
    ]
    return ModelSpec.from_traces(structure, traces)


__all__ = ["TRACED_BATCHES", "TensorSpec", "extract"]
