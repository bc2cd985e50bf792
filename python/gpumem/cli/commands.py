"""The commands: read arguments, ask the Python API, print one answer."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from typing import Annotated

import typer

import gpumem
from gpumem.cli import EXIT_DOES_NOT_FIT
from gpumem.cli.arguments import (
    Accumulate,
    AllocConf,
    Batch,
    Budget,
    ChannelsLast,
    ClipGradNorm,
    Command,
    Context,
    ConvWorkspaces,
    CudnnBenchmark,
    Gpu,
    HostReads,
    Input,
    Json,
    Mode,
    Model,
    Optimizer,
    Precision,
    Stack,
    StepInBackward,
    ZeroGrad,
    loop_keywords,
    target_keywords,
)
from gpumem.cli.named import named_model, screen, show, show_front, show_json, show_report
from gpumem.cli.run import CONTEXT_SETTINGS, run
from gpumem.cli.spelling import error_text
from gpumem.cli.sweep import sweep
from gpumem.cli.validate import validate
from gpumem.errors import DoesNotFitError
from gpumem.planning.text import plan_text
from gpumem.render import WIDTH, gpus_text
from gpumem.units import format_bytes


@dataclass
class Session:
    """Options that stand before the command."""

    show_traceback: bool = False


app = typer.Typer(
    help="How much GPU memory a PyTorch model will take, and the largest batch that fits, without touching a GPU.",
    epilog="Exit codes: 0 fits, 1 does not fit, 2 error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error was raised.")] = False,
) -> None:
    """Options before the command."""
    if version:
        from importlib.metadata import version as installed_version

        show(f"gpumem {installed_version('gpumem')}")
        raise typer.Exit
    context.obj.show_traceback = traceback


def keywords() -> frozenset[str]:
    """Keywords of the Python API that are options here."""
    return frozenset().union(*(inspect.signature(command).parameters for command in (estimate, plan, sweep, validate)))


@app.command(cls=Command, short_help="Memory at one batch size, and whether it fits.")
def estimate(
    model: Model,
    batch: Batch,
    gpu: Gpu = None,
    budget: Budget = None,
    mode: Mode = "train",
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    input: Input = None,
    channels_last: ChannelsLast = False,
    zero_grad: ZeroGrad = "none",
    accumulate: Accumulate = 1,
    clip_grad_norm: ClipGradNorm = None,
    step_in_backward: StepInBackward = False,
    host_reads: HostReads = "error",
    stack: Stack = None,
    context: Context = None,
    alloc_conf: AllocConf = None,
    cudnn_benchmark: CudnnBenchmark = False,
    conv_workspaces: ConvWorkspaces = "auto",
    as_json: Json = False,
) -> None:
    """Say how much memory a training or inference loop takes at one batch size, and whether it fits."""
    target = target_keywords(gpu, budget, stack, context, alloc_conf, cudnn_benchmark, conv_workspaces)
    loop = loop_keywords(
        mode,
        precision,
        optimizer,
        channels_last,
        zero_grad,
        accumulate,
        clip_grad_norm,
        step_in_backward,
        host_reads,
        gpu,
    )
    named = named_model(model, input, loop)
    report = named.estimate(batch, target)
    if as_json:
        show_json(named, report=report.to_dict())
    else:
        show_report(named, report)
    if report.fits is False:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


@app.command(cls=Command, short_help="The largest batch that fits a card or a budget.")
def max_batch(
    model: Model,
    gpu: Gpu = None,
    budget: Budget = None,
    mode: Mode = "train",
    precision: Precision = "fp32",
    optimizer: Optimizer = "sgd",
    input: Input = None,
    channels_last: ChannelsLast = False,
    zero_grad: ZeroGrad = "none",
    accumulate: Accumulate = 1,
    clip_grad_norm: ClipGradNorm = None,
    step_in_backward: StepInBackward = False,
    host_reads: HostReads = "error",
    stack: Stack = None,
    context: Context = None,
    alloc_conf: AllocConf = None,
    cudnn_benchmark: CudnnBenchmark = False,
    conv_workspaces: ConvWorkspaces = "auto",
    as_json: Json = False,
) -> None:
    """Find the largest batch that fits a card or a budget; the next larger one does not."""
    if gpu is None and budget is None:
        raise typer.BadParameter("give --gpu or --budget (or both)")
    target = target_keywords(gpu, budget, stack, context, alloc_conf, cudnn_benchmark, conv_workspaces)
    loop = loop_keywords(
        mode,
        precision,
        optimizer,
        channels_last,
        zero_grad,
        accumulate,
        clip_grad_norm,
        step_in_backward,
        host_reads,
        gpu,
    )
    named = named_model(model, input, loop)
    try:
        largest, report = named.largest(target)
    except DoesNotFitError as error:
        if as_json:
            facts = {"budget_bytes": error.budget_bytes, "smallest_bytes": error.smallest_bytes}
            show_json(named, max_batch=0, **facts)
        else:
            show(f"{named.description}: not even batch 1 fits\n{error_text(error, keywords())}")
        raise typer.Exit(EXIT_DOES_NOT_FIT) from None
    if as_json:
        show_json(named, max_batch=largest, report=report.to_dict())
        return
    limit = format_bytes(report.budget_bytes) if report.budget_bytes is not None else ""
    card = f"{report.to_dict()['gpu']}, " if gpu else ""
    show(f"Largest batch that fits {card}{limit}: {largest}\n")
    show_report(named, report)


@app.command(cls=Command, short_help="Batch, precision and modules to checkpoint so that training fits.")
def plan(
    model: Model,
    gpu: Gpu = None,
    budget: Budget = None,
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", metavar="N", help="Samples per micro-batch; default: chosen.")
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(metavar="N", help="Samples per optimizer step, reached by accumulation.")
    ] = None,
    objective: Annotated[
        str, typer.Option(metavar="throughput|batch", help="What a free batch is chosen for.")
    ] = "throughput",
    precision: Annotated[
        str, typer.Option(metavar="NAME[,NAME]", help="The precision, or several to choose from.")
    ] = "fp32",
    optimizer: Optimizer = "sgd",
    input: Input = None,
    channels_last: ChannelsLast = False,
    zero_grad: ZeroGrad = "none",
    accumulate: Accumulate = 1,
    clip_grad_norm: ClipGradNorm = None,
    step_in_backward: StepInBackward = False,
    host_reads: HostReads = "error",
    stack: Stack = None,
    context: Context = None,
    alloc_conf: AllocConf = None,
    cudnn_benchmark: CudnnBenchmark = False,
    conv_workspaces: ConvWorkspaces = "auto",
    offload: Annotated[
        bool, typer.Option("--offload", help="What blocks save for backward may wait in the host's memory too.")
    ] = False,
    code: Annotated[
        bool, typer.Option("--code", help="Print the lines to paste into a script, and nothing else.")
    ] = False,
    front: Annotated[
        bool, typer.Option("--front", help="The best plan for every budget instead of one; needs --batch.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find a batch size and the modules to checkpoint so that training fits, with the least to run again."""
    if code and as_json:
        raise typer.BadParameter("--code and --json both say what is printed: give one")
    if front and (batch is None or budget is not None or global_batch is not None or code):
        raise typer.BadParameter("--front is for every budget at one --batch: no --budget, --global-batch or --code")
    if gpu is None and budget is None and not front:
        raise typer.BadParameter("give --gpu or --budget (or both)")
    target = target_keywords(gpu, budget, stack, context, alloc_conf, cudnn_benchmark, conv_workspaces)
    precisions = tuple(part.strip() for part in precision.split(",") if part.strip())
    first = precisions[0] if precisions else precision
    loop = loop_keywords(
        "train",
        first,
        optimizer,
        channels_last,
        zero_grad,
        accumulate,
        clip_grad_norm,
        step_in_backward,
        host_reads,
        gpu,
    )
    named = named_model(model, input, loop)
    if front:
        show_front(named, target, batch, as_json=as_json)
        return
    try:
        found = named.plan(
            target, batch=batch, global_batch=global_batch, objective=objective, precision=precisions, offload=offload
        )
    except DoesNotFitError as error:
        if as_json:
            facts = {"budget_bytes": error.budget_bytes, "smallest_bytes": error.smallest_bytes, "tried": error.hint}
            show_json(named, plan=None, **facts)
        else:
            show(f"{named.description}: {error_text(error, keywords())}")
        raise typer.Exit(EXIT_DOES_NOT_FIT) from None
    if as_json:
        show_json(named, plan=json.loads(found.to_json()))
    elif code:
        show(found.code())
    else:
        show(plan_text(found, title=named.description, notes=named.notes, **screen()))


app.command(cls=Command, short_help="Every combination of models, loops, batches and cards.")(sweep)
app.command(cls=Command, short_help="The prediction put to the test, on a real or virtual GPU.")(validate)
app.command(cls=Command, context_settings=CONTEXT_SETTINGS, short_help="Your own program on a virtual GPU.")(run)


@app.command(cls=Command, short_help="The known cards and their memory.")
def gpus(as_json: Json = False) -> None:
    """List the known cards with the bytes that torch sees on them."""
    profiles = gpumem.gpus()
    if as_json:
        fields = ("name", "torch_name", "aliases", "capability", "sm_count", "total_bytes", "total_bytes_measured")
        show(json.dumps([{name: getattr(gpu, name) for name in fields} for gpu in profiles]))
    else:
        show(gpus_text(profiles, **screen(WIDTH)))
