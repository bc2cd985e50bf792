"""`gpumem validate`: the prediction for a model put to the test on a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import gpumem
from gpumem.cli.arguments import (
    AllocConf,
    Budget,
    ChannelsLast,
    ClipGradNorm,
    Context,
    HostReads,
    Input,
    Json,
    Mode,
    Model,
    StepInBackward,
    ZeroGrad,
    loop_keywords,
    target_keywords,
)
from gpumem.cli.named import import_from_here, screen, show
from gpumem.cli.progress import progress
from gpumem.errors import InputError, PlanError

EXIT_NOT_CONFIRMED = 1


def validate(
    model: Model,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="cuda:0 for a real GPU, virtual:rtx3090 for a virtual one; default: the virtual one of the plan.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", "-b", metavar="N", help="Samples per step; default: the plan's, or see --bracket."),
    ] = None,
    budget: Budget = None,
    bracket: Annotated[
        bool, typer.Option("--bracket", help="Also run the next batch sizes: is the predicted one the largest?")
    ] = False,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A plan to apply, from `gpumem plan --json` or Plan.to_json().")
    ] = None,
    receipt: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the evidence there, as JSON.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="What one run may take.")] = 300.0,
    mode: Mode = "train",
    precision: Annotated[
        str | None, typer.Option(metavar="NAME", help="fp32, tf32, amp-fp16, amp-bf16, fp16 or bf16.")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of torch.optim, also with arguments: 'sgd(momentum=0.9)'.")
    ] = None,
    input: Input = None,
    channels_last: ChannelsLast = False,
    zero_grad: ZeroGrad = "none",
    accumulate: Annotated[int | None, typer.Option(metavar="N", help="Micro-batches per optimizer step.")] = None,
    clip_grad_norm: ClipGradNorm = None,
    step_in_backward: StepInBackward = False,
    host_reads: HostReads = "error",
    context: Context = None,
    alloc_conf: AllocConf = None,
    as_json: Json = False,
) -> None:
    """Run the loop on a device in a child process and compare what it takes with the prediction.

    Exit codes: 0 confirmed, 1 not confirmed, 2 error.
    """
    loop = loop_keywords(
        mode, precision or "fp32", optimizer or "sgd", channels_last, zero_grad, accumulate or 1, clip_grad_norm,
        step_in_backward, host_reads, None,
    )  # fmt: skip
    target = target_keywords(None, budget, None, context, alloc_conf)
    # A plan brings its own; what is given must agree with it.
    for name, given in (("precision", precision), ("optimizer", optimizer), ("accumulate", accumulate)):
        if given is None:
            del loop[name]
    # The device decides on both.
    del loop["gpu"], target["stack"], target["cudnn_benchmark"], target["conv_workspaces"]
    import_from_here()
    subject: dict[str, Any] = {"subject": model} if plan is None else {"subject": _plan(plan), "model": model}
    with progress(f"running {model}"):
        done = gpumem.validate(
            **subject, input=input, on=on, batch=batch, bracket=bracket, timeout=timeout, **loop, **target
        )
    if receipt is not None:
        receipt.write_text(done.receipt() + "\n", encoding="utf-8")
    if as_json:
        show(done.to_json())
    else:
        from gpumem.validation.text import validation_text

        show(validation_text(done, **screen()))
    if not done.confirmed:
        raise typer.Exit(EXIT_NOT_CONFIRMED)


def _plan(file: Path) -> gpumem.Plan:
    """A plan as `Plan.to_json` or as the command writes it."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the plan {str(file)!r} cannot be read: {error.strerror}") from error
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise PlanError(f"{str(file)!r} is no plan", "`gpumem plan --json` writes one") from error
    inner = fields.get("plan") if isinstance(fields, dict) else None
    return gpumem.Plan.from_json(text if inner is None else json.dumps(inner))
