"""Extraction: from a `torch.nn.Module` to a `ModelSpec`, on meta tensors, without a GPU.

`extract` is the entry. What it runs is the reference loop (`gpumem.loop`) under `gpumem.extraction.trace`; the planner
and the validator go through `loop_tracer` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from gpumem._core import ModelSpec
from gpumem.errors import BatchDependentError
from gpumem.extraction.inputs import TensorSpec
from gpumem.extraction.loop_tracer import LoopTracer
from gpumem.extraction.options import check_batches
from gpumem.extraction.question import ask
from gpumem.loop import Criterion, Step

# Never 1: a dimension of size 1 changes contiguity and memory formats. The last one checks the polynomials; it is
# beyond 64, so that batches padded to a power of two up to that, or cut into chunks of it, are noticed.
TRACED_BATCHES = (2, 3, 67)
# A quadratic through three points is confirmed by a fourth.
QUADRATIC_CHECK_BATCH = 7


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
    step_in_backward: bool = False,
    gpu: str | None = None,
    batches: Sequence[int] = TRACED_BATCHES,
    host_reads: str = "error",
) -> ModelSpec:
    """Trace a training or inference loop of `model` and return what it asks of the CUDA allocator at any batch size.

    Nothing is computed, no GPU is touched, no weight is copied, and the model is left as it was.

    Args:
        model: Any module, on any device; its weights are not read.
        input: Shape of one sample `(3, 224, 224)`, a `TensorSpec`, an example tensor (first dimension = batch), a
            tuple of those (several inputs) or a mapping of argument names to those; or the command line's text for
            it, `"3,224,224"` or `"input_ids=128:int64;labels=128:int64"`. None: taken from what the model says about
            itself (timm, torchvision, transformers), and reported.
        mode: `train` or `infer`.
        precision: `fp32`, `tf32`, `amp-fp16`, `amp-bf16`, `fp16` or `bf16`.
        optimizer: Name in `torch.optim`, also with arguments (`"sgd(momentum=0.9)"`), `(name or class, kwargs)`, a
            class, or a function `params -> Optimizer`.
        criterion: `(output, target) -> loss`; None chooses by the output and reports it.
        target: Description of the target like `input`, for a criterion that needs one. None chooses by the criterion
            and the output, and reports it.
        step: Your own `step(model, optimizer, batch)`, traced as it is; `batch` is the inputs, or `(inputs, target)`
            when `target` is given.
        channels_last: Model and image inputs in channels_last.
        zero_grad: `none` (set_to_none) or `zero`.
        accumulate: Micro-batches per optimizer step; the batch size is that of one micro-batch.
        clip_grad_norm: Maximal norm for `clip_grad_norm_`, or None.
        step_in_backward: Whether each parameter has an optimizer of its own that steps as soon as its gradient is
            complete and lets go of it (`gpumem.loop.optimizers_in_backward`); an optimizer given by name or class is
            made with `foreach=False` then, if nothing else is said.
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
    question = ask(
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
        step_in_backward=step_in_backward,
        gpu=gpu,
        host_reads=host_reads,
    )
    sizes = check_batches(batches)
    tracer = LoopTracer(question)
    recorders = tracer.recorders(sizes)
    try:
        return tracer.assemble(recorders, sizes)
    except BatchDependentError:
        if QUADRATIC_CHECK_BATCH in sizes or len(sizes) < len(TRACED_BATCHES):
            raise
    sizes = (*sizes, QUADRATIC_CHECK_BATCH)
    return tracer.assemble([*recorders, *tracer.recorders(sizes[-1:], draw=recorders[0].draw)], sizes)


__all__ = ["TRACED_BATCHES", "TensorSpec", "extract"]
