"""The one-line questions: extract, then ask the spec."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpumem.errors import BatchDependentError, GpumemError, InputError

if TYPE_CHECKING:
    from torch import nn

    from gpumem._core import ModelSpec, Report
    from gpumem.planning import Front, Plan

# Keywords of `ModelSpec`'s methods; all others belong to `extract`.
_TARGET_KEYWORDS = (
    "budget",
    "stack",
    "context",
    "alloc_conf",
    "library_workspaces",
    "cudnn_benchmark",
    "conv_workspaces",
)
# Batch sizes beyond this are not traced themselves: a loop over samples would take too long.
_LARGEST_TRACED_BATCH = 1 << 16


@contextlib.contextmanager
def needing_torch() -> Iterator[None]:
    """Say what to install when PyTorch is not there.

    Raises:
        GpumemError: the block imported torch, which is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise GpumemError("a model is extracted with PyTorch, which is not installed", "pip install torch") from error


def extract(model: nn.Module, input: Any = None, **keywords: Any) -> ModelSpec:
    """Trace a training or inference loop of `model` once, for every batch size.

    Args:
        model: Any module; it is not modified and its weights are not read.
        input: Shape of one sample `(3, 224, 224)`, float32; with a type `((128,), torch.int64)`; an example tensor,
            whose first dimension is the batch; a tuple of those for several inputs, or a mapping of argument names to
            those. None asks the model.
        **keywords: mode, precision, optimizer, criterion, target, step, channels_last, zero_grad, accumulate,
            clip_grad_norm, gpu, batches, host_reads; `gpumem.extraction.extract` describes each.

    Returns:
        A `ModelSpec`, whose methods need no torch.

    Raises:
        GpumemError: the input is unknown or refused, a name is unknown, or the model cannot be traced.
    """
    with needing_torch():
        from gpumem.extraction import extract as extract_spec

    return extract_spec(model, input, **keywords)


def _split(keywords: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords for `extract` and for the spec's method; `gpu` goes to both."""
    target = {name: keywords.pop(name) for name in _TARGET_KEYWORDS if name in keywords}
    if keywords.get("gpu") is not None:
        target["gpu"] = keywords["gpu"]
    return keywords, target


def _checked_batch(batch: Any) -> int:
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch < 1 << 63:
        raise InputError(f"batch must be a positive integer, not {batch!r}")
    return batch


def estimate(model: nn.Module, input: Any = None, *, batch: int, **keywords: Any) -> Report:
    """Answer how much one loop of `model` takes at this batch size.

    Args:
        model: Any module; it is not modified and its weights are not read.
        input: Shape of one sample, see `extract`; None asks the model.
        batch: Batch size.
        **keywords: Those of `extract` (mode, precision, optimizer, ...) and of `ModelSpec.estimate` (gpu, budget,
            stack, context, alloc_conf, cudnn_benchmark, conv_workspaces: who says the workspaces of convolutions,
            `"auto"` the installed cuDNN where it can be asked, else fitted rules; `"cudnn"`; or `"rules"`).

    Returns:
        A `Report`: requested, allocated, reserved and device peaks in bytes, what makes them up, and what was assumed.

    Raises:
        GpumemError: see `extract`; `BudgetError`, `UnknownNameError`, `AllocConfError`, `StackError` for the target.
    """
    batch = _checked_batch(batch)
    extraction, target = _split(keywords)
    if batch <= _LARGEST_TRACED_BATCH:
        # No polynomial is needed, and what changes at some batch size (padding, chunks, thresholds) is seen.
        return extract(model, input, batches=(batch,), **extraction).estimate(batch, **target)
    try:
        spec = extract(model, input, **extraction)
    except BatchDependentError:
        spec = extract(model, input, batches=(batch,), **extraction)
    return spec.estimate(batch, **target)


def max_batch(model: nn.Module, input: Any = None, **keywords: Any) -> int:
    """Find the largest batch size that fits; the next one does not.

    Args:
        model: Any module; it is not modified and its weights are not read.
        input: Shape of one sample, see `extract`; None asks the model.
        **keywords: Those of `extract` and of `ModelSpec.max_batch`; `gpu=` or `budget=` is needed.

    Returns:
        The largest batch size, for the upper end of every named uncertainty.

    Raises:
        DoesNotFitError: not even one sample fits.
        GpumemError: as for `estimate`.
    """
    return largest(model, input, **keywords)[0]


def largest(model: nn.Module, input: Any = None, **keywords: Any) -> tuple[int, Report]:
    """The answer of `max_batch` together with the report of that batch size, whose trace confirmed it."""
    extraction, target = _split(keywords)
    try:
        spec = extract(model, input, **extraction)
    except BatchDependentError:
        spec = None
    if spec is not None:
        batch = spec.max_batch(**target)
        report = spec.estimate(batch, **target)
        if batch > _LARGEST_TRACED_BATCH:
            return batch, report
        traced = extract(model, input, batches=(batch,), **extraction).estimate(batch, **target)
        if traced.requested_peak == report.requested_peak and traced.reserved_peak == report.reserved_peak:
            return batch, traced
    # The polynomials do not hold as far as that: the model changes at some batch size in between.
    batch = _max_batch_by_tracing(model, input, extraction, target)
    return batch, extract(model, input, batches=(batch,), **extraction).estimate(batch, **target)


def _max_batch_by_tracing(model: nn.Module, input: Any, extraction: dict[str, Any], target: dict[str, Any]) -> int:
    """Bisection with a trace for every size, for models whose allocations are no polynomial in the batch."""

    def fits(batch: int) -> bool:
        return extract(model, input, batches=(batch,), **extraction).fits(batch, **target)

    if not fits(1):
        # Raises with the numbers.
        return extract(model, input, batches=(1,), **extraction).max_batch(**target)
    fitting, failing = 1, 2
    while failing <= _LARGEST_TRACED_BATCH and fits(failing):
        fitting, failing = failing, 2 * failing
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        if fits(middle):
            fitting = middle
        else:
            failing = middle
    return fitting


def plan(
    model: nn.Module,
    input: Any = None,
    *,
    batch: int | None = None,
    global_batch: int | None = None,
    objective: str = "throughput",
    precision: str | Sequence[str] = "fp32",
    offload: bool = False,
    choose: Mapping[str, Sequence[Any]] | None = None,
    **keywords: Any,
) -> Plan:
    """Find a batch size and the modules to checkpoint so that training fits, with the least to run again.

    Every plan that is returned was traced as it runs and played on the simulated allocator: it fits by the same account
    as `estimate`. Times are the card's roofline: good for comparing plans, not for predicting a clock.

    Args:
        model: Any module; it is not modified.
        input: Shape of one sample, see `extract`; None asks the model.
        batch: Samples per micro-batch; None leaves it to the search.
        global_batch: Samples per optimizer step, to be reached by accumulation; the micro-batch is then chosen.
        objective: With a free batch: `throughput` (samples per second) or `batch` (the largest).
        precision: The precision, or several to choose from.
        offload: Whether what regions save for the backward pass may also wait in the host's memory; its price is that
            of PCI Express at its specified rate, both ways.
        choose: Other keywords of `extract` of which the search may choose, with their values: `optimizer`, `zero_grad`,
            `channels_last`, `step_in_backward`. Of equally good ones the first; combinations that contradict
            themselves are passed over.
        **keywords: Those of `extract` (optimizer, channels_last, ...) and of `ModelSpec.estimate`; `gpu=` or `budget=`
            is needed.

    Returns:
        A `Plan`: `print` it, `apply(model)` it, or take its `code()`.

    Raises:
        DoesNotFitError: no plan fits; the message has the smallest budget that would and what helps.
        PlanError: the axes leave nothing to search.
        GpumemError: as for `estimate`.
    """
    with needing_torch():
        from gpumem.extraction.keywords import loop_keywords
        from gpumem.planning.axes import Axes
        from gpumem.planning.search import find_plan
    extraction, target = _split(keywords)
    for size in (batch, global_batch):
        if size is not None:
            _checked_batch(size)
    precisions = (precision,) if isinstance(precision, str) else tuple(precision or ())
    open_to = {name: (values,) if isinstance(values, str) else tuple(values) for name, values in (choose or {}).items()}
    axes = Axes(
        batch=batch,
        global_batch=global_batch,
        objective=objective,
        precisions=precisions,
        offload=offload,
        choices=open_to,
    )
    return find_plan(model, input, axes, loop_keywords(extraction), target)


def pareto(
    model: nn.Module, input: Any = None, *, batch: int, points: int = 32, precision: str = "fp32", **keywords: Any
) -> Front:
    """Find the whole front of memory against recomputation: which plan is the cheapest for every budget.

    Every plan of the front was joined from traces with the real checkpoints applied, and played on the simulated
    allocator within the bytes that it is given with; the search for that budget finds no cheaper one among them.

    Args:
        model: Any module; it is not modified.
        input: Shape of one sample, see `extract`; None asks the model.
        batch: Samples per micro-batch.
        points: About how many plans, evenly from the fewest bytes to no recomputation; fewer where there are fewer.
        precision: The precision.
        **keywords: Those of `extract` (optimizer, channels_last, ...) and gpu, stack, context, alloc_conf of
            `ModelSpec.estimate`.

    Returns:
        A `Front`: `print` it, iterate over its points, or ask for `within("16GB")`.

    Raises:
        InputError: a budget was given, or points that cannot be meant.
        PlanError: mode is `infer`.
        GpumemError: as for `estimate`.
    """
    with needing_torch():
        from gpumem.extraction.keywords import loop_keywords
        from gpumem.extraction.options import check_options
        from gpumem.planning.front import find_front
    extraction, target = _split(keywords)
    loop = loop_keywords({**extraction, "precision": precision})
    check_options(loop)
    return find_front(model, input, _checked_batch(batch), points, loop, target)
