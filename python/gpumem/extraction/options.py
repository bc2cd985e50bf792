"""Checks the options of `extract` before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from gpumem.errors import InputError, UnknownNameError

PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16", "fp16", "bf16")
MODES = ("train", "infer")
ZERO_GRADS = ("none", "zero")
HOST_READS = ("error", "zeros")


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value).lower(), known, n=2)
        hint = f"nearest: {', '.join(near)}; " if near else ""
        raise UnknownNameError(f"unknown {name} {value!r}", f"{hint}known: {', '.join(known)}")


def check_batches(batches: Any) -> tuple[int, ...]:
    """The batch sizes to trace, each once.

    Raises:
        InputError: none at all, or one that is no positive integer.
    """
    sizes = tuple(batches) if isinstance(batches, Sequence) and not isinstance(batches, str) else ()
    if not sizes:
        raise InputError(f"batches must be a sequence of batch sizes, not {batches!r}", "for example batches=(2, 3, 5)")
    for size in sizes:
        check_batch(size)
    return tuple(dict.fromkeys(sizes))


def check_batch(batch: Any) -> int:
    """A batch size that can be traced.

    Raises:
        InputError: it is no positive integer below 2^63.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch < 1 << 63:
        raise InputError(f"batch must be a positive integer, not {batch!r}")
    return batch


def check_options(options: dict[str, Any]) -> None:
    """Raise for an option that cannot be meant.

    Raises:
        UnknownNameError: a mode, precision or zero_grad that does not exist.
        InputError: a count, norm or function of the wrong kind.
    """
    _one_of("mode", options["mode"], MODES)
    _one_of("precision", options["precision"], PRECISIONS)
    _one_of("zero_grad", options["zero_grad"], ZERO_GRADS)
    _one_of("host_reads", options["host_reads"], HOST_READS)
    accumulate = options["accumulate"]
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise InputError(f"accumulate must be a positive integer, not {accumulate!r}")
    norm = options["clip_grad_norm"]
    if norm is not None and (isinstance(norm, bool) or not isinstance(norm, (int, float)) or not norm > 0):
        raise InputError(f"clip_grad_norm must be a positive number or None, not {norm!r}")
    _check_step_in_backward(options)
    for name in ("criterion", "step"):
        if options[name] is not None and not callable(options[name]):
            raise InputError(f"{name} must be callable, not {type(options[name]).__name__}")
    if options["step"] is not None and options["mode"] == "infer":
        raise InputError("step= is a training step and mode is 'infer'", "leave one of them out")


def _check_step_in_backward(options: dict[str, Any]) -> None:
    value = options["step_in_backward"]
    if not isinstance(value, bool):
        raise InputError(f"step_in_backward must be True or False, not {value!r}")
    if not value:
        return
    against = {
        "mode='infer'": options["mode"] == "infer",
        f"accumulate={options['accumulate']}": options["accumulate"] != 1,
        f"clip_grad_norm={options['clip_grad_norm']}": options["clip_grad_norm"] is not None,
        "precision='amp-fp16' (its GradScaler)": options["precision"] == "amp-fp16",
        "zero_grad='zero'": options["zero_grad"] == "zero",
        "step=": options["step"] is not None,
    }
    for what, is_so in against.items():
        if is_so:
            raise InputError(
                f"step_in_backward=True and {what} contradict each other",
                "each parameter is updated as soon as its gradient is complete, and the gradient is gone: leave one of "
                "them out",
            )
