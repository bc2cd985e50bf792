"""The commands: read arguments, ask the Python API, print one answer."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import gpumem
from gpumem import api
from gpumem._core import find_gpu, parse_alloc_conf
from gpumem.cli import EXIT_DOES_NOT_FIT
from gpumem.cli.arguments import parse_input, parse_optimizer
from gpumem.cli.progress import progress
from gpumem.errors import DoesNotFitError
from gpumem.render import WIDTH, gpus_text, report_text
from gpumem.units import format_bytes, parse_bytes


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
)

Model = Annotated[
    str,
    typer.Argument(
        help="torchvision:NAME, timm:NAME, hf:NAME (config only) or package.module:factory", show_default=False
    ),
]
Batch = Annotated[int, typer.Option("--batch", "-b", help="Samples per step.")]
Gpu = Annotated[str | None, typer.Option(help="Card, for example rtx3090 or a100-80gb; see `gpumem gpus`.")]
Budget = Annotated[str | None, typer.Option(help="Bytes for the whole process: 24GB (10^9) or 24GiB (2^30).")]
Mode = Annotated[str, typer.Option(help="train or infer.")]
Precision = Annotated[str, typer.Option(help="fp32, tf32, amp-fp16, amp-bf16, fp16 or bf16.")]
Optimizer = Annotated[str, typer.Option(help="Name in torch.optim, optionally with arguments: sgd:momentum=0.9.")]
Input = Annotated[
    str | None, typer.Option(help="Shape of one sample: 3,224,224, 128:int64, or input_ids=128:int64;labels=128:int64.")
]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Model and images in channels_last.")]
ZeroGrad = Annotated[str, typer.Option(help="none (set_to_none=True) or zero.")]
Accumulate = Annotated[int, typer.Option(help="Micro-batches per optimizer step.")]
ClipGradNorm = Annotated[float | None, typer.Option(help="Clip gradients to this norm.")]
Stack = Annotated[str | None, typer.Option(help="Target software, for example torch-2.14+cu130.")]
Context = Annotated[str | None, typer.Option(help="Size of the CUDA context, if you know it: 500MB.")]
AllocConf = Annotated[str | None, typer.Option(help="PYTORCH_CUDA_ALLOC_CONF of the target.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]


@dataclass(frozen=True)
class _Named:
    """The model of a command line, traced."""

    name: str
    description: str
    notes: list[str]
    model: Any
    input: Any
    loop: dict[str, Any]

    def estimate(self, batch: int, target: dict[str, Any]) -> gpumem.Report:
        with progress(f"tracing {self.description}"):
            return api.estimate(self.model, self.input, batch=batch, **self.loop, **target)

    def largest(self, target: dict[str, Any]) -> tuple[int, gpumem.Report]:
        with progress(f"tracing {self.description}"):
            return api.largest(self.model, self.input, **self.loop, **target)


def _named(name: str, input_text: str | None, loop: dict[str, Any]) -> _Named:
    from gpumem.sources import resolve

    # As `python -m` does: factories in the current folder can be imported.
    if "" not in sys.path:
        sys.path.insert(0, "")
    given = None if input_text is None else parse_input(input_text)
    with progress(f"building {name}"):
        source = resolve(name, mode=loop["mode"], input=given)
    return _Named(name, source.description, source.assumptions, source.model, source.input, loop)


def _loop(
    mode: str,
    precision: str,
    optimizer: str,
    channels_last: bool,
    zero_grad: str,
    accumulate: int,
    clip_grad_norm: float | None,
    gpu: str | None,
) -> dict[str, Any]:
    return {
        "mode": mode,
        "precision": precision,
        "optimizer": parse_optimizer(optimizer),
        "channels_last": channels_last,
        "zero_grad": zero_grad,
        "accumulate": accumulate,
        "clip_grad_norm": clip_grad_norm,
        "gpu": gpu,
    }


def _target(
    gpu: str | None, budget: str | None, stack: str | None, context: str | None, alloc_conf: str | None
) -> dict[str, Any]:
    """The target's keywords; a name or size that is wrong is found here, before torch is imported."""
    if gpu is not None:
        find_gpu(gpu)
    return {
        "budget": None if budget is None else parse_bytes(budget),
        "stack": stack,
        "context": None if context is None else parse_bytes(context, "context"),
        "alloc_conf": None if alloc_conf is None else parse_alloc_conf(alloc_conf),
    }


def _show(text: str) -> None:
    typer.echo(text)


def _screen() -> dict[str, Any]:
    color = sys.stdout.isatty()
    return {"color": color, "width": min(shutil.get_terminal_size().columns, 120) if color else WIDTH}


def _show_report(named: _Named, report: gpumem.Report) -> None:
    _show(report_text(report, title=named.description, notes=named.notes, **_screen()))


def _json(named: _Named, **answer: Any) -> None:
    _show(json.dumps({"model": named.name, "description": named.description, "notes": named.notes, **answer}))


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error was raised.")] = False,
) -> None:
    """Options before the command."""
    if version:
        from importlib.metadata import version as installed_version

        _show(f"gpumem {installed_version('gpumem')}")
        raise typer.Exit
    context.obj.show_traceback = traceback


@app.command()
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
    stack: Stack = None,
    context: Context = None,
    alloc_conf: AllocConf = None,
    as_json: Json = False,
) -> None:
    """Say how much memory a training or inference loop takes at one batch size, and whether it fits."""
    target = _target(gpu, budget, stack, context, alloc_conf)
    loop = _loop(mode, precision, optimizer, channels_last, zero_grad, accumulate, clip_grad_norm, gpu)
    named = _named(model, input, loop)
    report = named.estimate(batch, target)
    if as_json:
        _json(named, report=report.to_dict())
    else:
        _show_report(named, report)
    if report.fits is False:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


@app.command()
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
    stack: Stack = None,
    context: Context = None,
    alloc_conf: AllocConf = None,
    as_json: Json = False,
) -> None:
    """Find the largest batch that fits a card or a budget; the next larger one does not."""
    if gpu is None and budget is None:
        raise typer.BadParameter("give --gpu or --budget (or both)")
    target = _target(gpu, budget, stack, context, alloc_conf)
    loop = _loop(mode, precision, optimizer, channels_last, zero_grad, accumulate, clip_grad_norm, gpu)
    named = _named(model, input, loop)
    try:
        largest, report = named.largest(target)
    except DoesNotFitError as error:
        if as_json:
            facts = {"budget_bytes": error.budget_bytes, "smallest_bytes": error.smallest_bytes}
            _json(named, max_batch=0, **facts)
        else:
            _show(f"{named.description}: not even batch 1 fits\n{error}")
        raise typer.Exit(EXIT_DOES_NOT_FIT) from None
    if as_json:
        _json(named, max_batch=largest, report=report.to_dict())
        return
    limit = format_bytes(report.budget_bytes) if report.budget_bytes is not None else ""
    _show(f"Largest batch that fits {f'{gpu}, ' if gpu else ''}{limit}: {largest}\n")
    _show_report(named, report)


@app.command()
def gpus(as_json: Json = False) -> None:
    """List the known cards with the bytes that torch sees on them."""
    profiles = gpumem.gpus()
    if as_json:
        fields = ("name", "torch_name", "aliases", "capability", "sm_count", "total_bytes", "total_bytes_measured")
        _show(json.dumps([{name: getattr(gpu, name) for name in fields} for gpu in profiles]))
    else:
        _show(gpus_text(profiles, **_screen()))
