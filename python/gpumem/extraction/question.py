"""What is asked of a trace: everything about a loop except the batch size, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gpumem._core import find_gpu
from gpumem.errors import InputError
from gpumem.extraction.inputs import parse_input
from gpumem.extraction.optimizer import optimizer_factory
from gpumem.extraction.options import check_options
from gpumem.extraction.target import KernelTarget
from gpumem.extraction.traceable import traceable
from gpumem.loop import Criterion, LoopConfig, Step
from gpumem.text import input_from_text

# The first step creates optimizer state, the second starts with the first one's leftovers and is the steady state.
TRACED_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Question:
    """A loop to be traced, checked.

    Attributes:
        model: The module; the one inside where a compiled one was given.
        inputs: Tree of `TensorSpec`.
        config: The loop's settings.
        target: What kernels are chosen for.
        make_optimizer: Parameters to optimizer, None for inference.
        optimizer_text: The optimizer in words.
        criterion: The loss, or None to choose one.
        criterion_target: Tree of `TensorSpec` for the loss's target, or None.
        step: The user's own training step, or None.
        assumptions: What was guessed so far.
        allow_host_reads: Whether values that a trace does not have are answered with zeros.
    """

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


def ask(model: nn.Module, description: Any, **options: Any) -> Question:
    """Check what is asked.

    Args:
        model: Any module; never modified.
        description: Its input, as for `gpumem.extract`.
        options: All keywords of `gpumem.extract` but `batches`.

    Raises:
        InputError: an argument that cannot be meant, an unknown input, or a module that cannot be traced.
        UnknownNameError: an unknown precision, mode, optimizer or GPU.
    """
    check_options(options)
    model, assumptions = traceable(model, options["mode"])
    description, said = _described(model, description, options["mode"])
    assumptions += said
    make_optimizer, optimizer_text = None, "none"
    if options["mode"] == "train":
        make_optimizer, optimizer_text = optimizer_factory(options["optimizer"], one_by_one=options["step_in_backward"])
    target = KernelTarget()
    if options["gpu"] is not None:
        found = find_gpu(options["gpu"])
        target = replace(target, capability=found.capability, gpu=found.name)
    return Question(
        model=model,
        inputs=parse_input(description),
        config=LoopConfig(
            mode=options["mode"],
            precision=options["precision"],
            channels_last=options["channels_last"],
            zero_grad=options["zero_grad"],
            accumulate=options["accumulate"],
            clip_grad_norm=options["clip_grad_norm"],
            step_in_backward=options["step_in_backward"],
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


def _described(model: nn.Module, description: Any, mode: str) -> tuple[Any, list[str]]:
    """The input's description, and what is assumed in it."""
    from gpumem.sources import complete_input, guess_input

    if isinstance(description, str):
        description = input_from_text(description)
    if description is not None:
        completed = complete_input(model, description, mode=mode)
        return (description, []) if completed is None else (completed[0], [completed[1]])
    guess = guess_input(model, mode=mode)
    if guess is None:
        raise InputError(
            f"the input of {type(model).__name__} is unknown",
            "pass the shape of one sample, input='3,224,224', for token ids with its type, input='128:int64', or by "
            "argument name, input='input_ids=128:int64;labels=128:int64'",
        )
    return guess[0], [guess[1]]
