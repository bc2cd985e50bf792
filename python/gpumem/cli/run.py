"""`gpumem run`: the user's own program on a virtual GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpumem.units import parse_bytes

CONTEXT_SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""What stands after the program belongs to the program."""


def run(
    program: Annotated[
        list[str],
        typer.Argument(help="SCRIPT or -m MODULE, and its arguments.", show_default=False, metavar="PROGRAM"),
    ],
    gpu: Annotated[str, typer.Option(metavar="CARD", help="For example rtx3090 or a100-80gb; see `gpumem gpus`.")],
    gpus: Annotated[int, typer.Option(metavar="N", help="How many of it.")] = 1,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of each, for the whole process: 24GB (10^9) or 24GiB (2^30)."),
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of the CUDA context, if you know it: 500MB.")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report there, as JSON.")] = None,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write PyTorch's snapshot there, for pytorch.org/memory_viz.")
    ] = None,
    trace: Annotated[int, typer.Option(metavar="0|1|2", help="1: failing CUDA calls on stderr, 2: all calls.")] = 0,
) -> None:
    """Run a Python program on a virtual GPU: real PyTorch, exact memory, no kernels. Linux, CUDA build of PyTorch."""
    from gpumem.virtual import run as run_program
    from gpumem.virtual.text import run_text

    done = run_program(
        program,
        gpu=gpu,
        gpus=gpus,
        budget_bytes=None if budget is None else parse_bytes(budget),
        context_bytes=None if context is None else parse_bytes(context, "context"),
        snapshot=snapshot,
        trace=trace,
    )
    if report is not None:
        report.write_text(done.to_json(), encoding="utf-8")
    # Standard output belongs to the program.
    print(f"\n{run_text(done)}", file=sys.stderr)
    if done.exit_code:
        raise typer.Exit(done.exit_code if done.exit_code > 0 else 128 - done.exit_code)
