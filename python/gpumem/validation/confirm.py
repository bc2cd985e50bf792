"""`gpumem.validate`: one prediction, one run, one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumem.api import needing_torch
from gpumem.errors import InputError

if TYPE_CHECKING:
    from gpumem.validation.result import Validation

_SESSION = ("budget", "context", "alloc_conf", "library_workspaces", "timeout")


def validate(
    subject: Any,
    input: Any = None,
    *,
    on: Any = None,
    batch: int | None = None,
    budget: float | str | None = None,
    model: Any = None,
    bracket: bool = False,
    timeout: float | None = None,
    **keywords: Any,
) -> Validation:
    """Put a prediction to the test: run the loop on a device, in a child process and under the budget, and measure.

    The child runs the reference loop (setup and three steps, `gpumem.loop`) or your `step`, with the plan applied. The
    prediction is made for the same card, the installed PyTorch and the same loop. Weights do not travel: the child's
    are zeros, unless the model is given by name and its factory fills them. A crash, an out-of-memory or a hang in the
    child is part of the answer.

    Args:
        subject: The model: a module, or its name (`"timm:vit_base_patch16_224"`, `"package.module:factory"`); or a
            `Plan`, or a `Report` whose numbers are to be checked, both with `model=`.
        input: Shape of one sample, see `gpumem.extract`; None asks the model.
        on: `"cuda:0"` for a real device, `"virtual:rtx3090"` for a virtual one (any card of `gpumem.gpus`). None: the
            virtual GPU of the plan's, the report's or the `gpu=` card.
        batch: Batch size; that of the plan or report when None, and with `bracket` the predicted largest.
        budget: Bytes for the whole process, so that a small card can be confirmed on a large one; the plan's or
            report's when None, else all that the device has. On a real device PyTorch's allocator is limited to the
            budget less the context (`torch.cuda.set_per_process_memory_fraction`); a virtual one has that much memory.
        model: Module or name, for a plan or report.
        bracket: Also run the next batch sizes, to confirm that the predicted one is the largest.
        timeout: Seconds that one run may take, building the model included; 300 when None.
        **keywords: Those of `gpumem.extract` (mode, precision, optimizer, criterion, step, ...), and `context`,
            `alloc_conf` and `library_workspaces` of `ModelSpec.estimate`. A plan or report brings its precision and, if
            it is one of `torch.optim`, its optimizer.

    Returns:
        A `Validation`: `print` it, ask `confirmed`, or keep its `receipt()`.

    Raises:
        ValidationError: there is no such device, or PyTorch does not start on it.
        VirtualDeviceError: the virtual device cannot be used here.
        InputError: a model, step or criterion that cannot be sent to the child, or arguments that do not go together.
        GpumemError: as for `gpumem.estimate`.
    """
    from gpumem._core import Report
    from gpumem.planning import Plan

    with needing_torch():
        from gpumem.validation.session import DEFAULT_TIMEOUT_S, Session
    if "stack" in keywords:
        raise InputError(
            "stack= is for estimates", "a run is made with the installed PyTorch, and so is its prediction"
        )
    card = keywords.get("gpu")
    if isinstance(subject, Plan):
        card, budget = card or subject.gpu, subject.budget_bytes if budget is None else budget
    elif isinstance(subject, Report):
        card, budget = card or subject.to_dict()["gpu"], subject.budget_bytes if budget is None else budget
    if on is None:
        if card is None:
            raise InputError("it is not said where to run", "on='cuda:0', or on='virtual:rtx3090' for a virtual GPU")
        on = f"virtual:{card}"
    settings = {name: keywords.pop(name) for name in _SESSION if name in keywords}
    limit = DEFAULT_TIMEOUT_S if timeout is None else timeout
    with Session(on, budget=budget, timeout=limit, **settings) as session:
        return session.validate(subject, input, batch=batch, model=model, bracket=bracket, **keywords)
