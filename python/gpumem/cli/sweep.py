"""`gpumem sweep`: every combination of models, loops, batch sizes and cards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

import gpumem
from gpumem.cli.arguments import Json, StepInBackward, context_bytes
from gpumem.cli.named import import_from_here, screen, show
from gpumem.errors import InputError

EXIT_NOTHING_FITS = 1

_RANGE = re.compile(r"(?P<first>\d+)-(?P<last>\d+)(?:/(?P<step>\d+))?")
_Several = list[str] | None


def _option(metavar: str, help: str) -> Any:
    return typer.Option(metavar=metavar, help=help)


def sweep(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="torchvision:NAME, timm:NAME, hf:NAME (config only) or package.module:factory; several.",
            show_default=False,
        ),
    ],
    batch: Annotated[
        str, typer.Option("--batch", "-b", metavar="N[,N]", help="Sizes 8,16,32, a range 8-256/8, or both.")
    ],
    gpu: Annotated[str | None, _option("CARD[,CARD]", "For example t4,rtx3090; `gpumem gpus` lists all.")] = None,
    budget: Annotated[str | None, _option("SIZE[,SIZE]", "Limits for the whole process: 24GB,40GiB.")] = None,
    mode: Annotated[str, _option("train|infer", "What is run.")] = "train",
    precision: Annotated[str, _option("NAME[,NAME]", "fp32, tf32, amp-fp16, amp-bf16, fp16 or bf16.")] = "fp32",
    optimizer: Annotated[_Several, _option("NAME", "Of torch.optim, also with arguments; may be repeated.")] = None,
    input: Annotated[
        _Several, _option("SHAPE", "Shape of one sample, 3,224,224 or 128:int64; may be repeated.")
    ] = None,
    checkpoint: Annotated[str, _option("none|all|plan", "Ways of checkpointing, separated by commas.")] = "none",
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Model and images in channels_last.")] = False,
    zero_grad: Annotated[
        str, _option("none|zero", "Gradients are set to None, or to zero; or both: none,zero.")
    ] = "none",
    accumulate: Annotated[str, _option("N[,N]", "Micro-batches per optimizer step.")] = "1",
    step_in_backward: StepInBackward = False,
    host_reads: Annotated[
        str, _option("error|zeros", "When a model reads values of tensors: stop, or take zeros.")
    ] = "error",
    stack: Annotated[_Several, _option("STACK", "Target software, torch-2.14+cu130; may be repeated.")] = None,
    context: Annotated[str | None, _option("SIZE", "Of the CUDA context, if you know it.")] = None,
    alloc_conf: Annotated[_Several, _option("CONF", "PYTORCH_CUDA_ALLOC_CONF; may be repeated.")] = None,
    cudnn_benchmark: Annotated[
        bool, typer.Option("--cudnn-benchmark", help="The program sets torch.backends.cudnn.benchmark.")
    ] = False,
    upper_only: Annotated[
        bool,
        typer.Option(
            "--upper-only", help="Only the upper end of every uncertainty: what fits is the same, in a third."
        ),
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="For each model and card, only the largest batch that fits.")
    ] = False,
    cache: Annotated[Path | None, _option("DIR", "Folder for traces; default: the system's folder for caches.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no traces.")] = False,
    csv: Annotated[Path | None, _option("FILE", "Write the table as CSV.")] = None,
    arrow: Annotated[Path | None, _option("FILE", "Write the table as Parquet; needs pyarrow.")] = None,
    as_json: Json = False,
) -> None:
    """Answer every combination of models, loops, batch sizes and cards; each loop is traced once, in parallel.

    Exit codes: 0 something fits, 1 nothing fits, 2 error.
    """
    if cache is not None and no_cache:
        raise typer.BadParameter("--cache and --no-cache contradict each other")
    grid: dict[str, Any] = {
        "mode": mode,
        "precision": _parts(precision),
        "optimizer": optimizer,
        "input": input,
        "checkpoint": _parts(checkpoint),
        "channels_last": channels_last,
        "zero_grad": _parts(zero_grad),
        "accumulate": _numbers(accumulate, "accumulate"),
        "step_in_backward": step_in_backward,
        "host_reads": host_reads,
        "batch": _numbers(batch, "batch"),
        "gpu": None if gpu is None else _parts(gpu),
        "budget": None if budget is None else _parts(budget),
        "stack": stack,
        "context": None if context is None else context_bytes(context),
        "alloc_conf": alloc_conf,
        "cudnn_benchmark": cudnn_benchmark,
    }
    import_from_here()
    table = gpumem.sweep(
        models,
        {name: values for name, values in grid.items() if values is not None},
        cache=False if no_cache else cache or True,
        upper_only=upper_only,
    )
    nothing_fits = not len(table.filter(fits=True)) and (gpu is not None or budget is not None)
    if best:
        table = table.best("batch", per=[axis for axis in table.axes if axis != "batch"])
    if csv is not None:
        table.to_csv(csv)
    if arrow is not None:
        _write_parquet(table, arrow)
    show(table.to_json() if as_json else _text(table))
    if nothing_fits:
        raise typer.Exit(EXIT_NOTHING_FITS)


def _text(table: gpumem.Sweep) -> str:
    from gpumem.sweeping.text import sweep_text

    return sweep_text(table, **screen())


def _write_parquet(table: gpumem.Sweep, file: Path) -> None:
    found = table.to_arrow()
    import importlib

    importlib.import_module("pyarrow.parquet").write_table(found, file)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str, what: str) -> list[int]:
    """Read `8,16,32-256/32`."""
    numbers: list[int] = []
    for part in _parts(text):
        match = _RANGE.fullmatch(part)
        if match is not None:
            first, last, step = int(match["first"]), int(match["last"]), int(match["step"] or 1)
            if step == 0 or last < first:
                raise InputError(f"{what} {part!r} is an empty range", "write 8-256/8: from, to, by")
            if (last - first) // step > 1_000_000:
                raise InputError(f"{what} {part!r} has more than a million values", "take larger steps: 8-4096/8")
            numbers += range(first, last + 1, step)
        elif part.isdecimal():
            numbers.append(int(part))
        else:
            raise InputError(f"{what} {part!r} is no number and no range", "write 8,16,32 or 8-256/8")
    return numbers
