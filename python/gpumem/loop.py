"""The reference loop: what "one training step" means, in one place.

Extraction runs it on meta tensors, the virtual GPU and a real CUDA device run it as it is, so that what is compared is
the same program. Every choice in it is a field of `LoopConfig`; a user's own `step(model, optimizer, batch)` replaces
its body.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpumem.errors import InputError

Batch = Any
Criterion = Callable[[Any, Any], torch.Tensor]
Step = Callable[[nn.Module, torch.optim.Optimizer, Batch], Any]
OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
Mark = Callable[[str], None]

AUTOCAST_DTYPES: Mapping[str, torch.dtype] = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
PURE_DTYPES: Mapping[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """One training or inference loop.

    Attributes:
        mode: `train` or `infer`.
        precision: One of `fp32`, `tf32`, `amp-fp16`, `amp-bf16`, `fp16`, `bf16`. `fp32` is PyTorch's default (TF32
            allowed in convolutions, not in matmuls); `tf32` allows it in both.
        channels_last: Model and 4-d (5-d) float inputs in `torch.channels_last` (`channels_last_3d`).
        zero_grad: `none` (`set_to_none=True`, PyTorch's default) or `zero`; at the start of the step.
        accumulate: Micro-batches per optimizer step.
        clip_grad_norm: `max_norm` for `torch.nn.utils.clip_grad_norm_`, or None.
        step_in_backward: Each parameter is updated by an optimizer of its own as soon as its gradient is complete, and
            the gradient is let go of (`optimizers_in_backward`).
        steps: Steps to run.
    """

    mode: str = "train"
    precision: str = "fp32"
    channels_last: bool = False
    zero_grad: str = "none"
    accumulate: int = 1
    clip_grad_norm: float | None = None
    step_in_backward: bool = False
    steps: int = 3


def prepare_on_host(model: nn.Module, config: LoopConfig) -> nn.Module:
    """Convert `model` in place as the loop's precision and layout ask, before it is moved to the device."""
    if config.precision in PURE_DTYPES:
        model.to(PURE_DTYPES[config.precision])
    if config.channels_last:
        model.to(memory_format=torch.channels_last)
    return model.train(config.mode == "train")


def autocast(config: LoopConfig) -> contextlib.AbstractContextManager[Any]:
    """The autocast context of the loop's precision (a no-op context for pure precisions)."""
    dtype = AUTOCAST_DTYPES.get(config.precision)
    return contextlib.nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype)


@contextlib.contextmanager
def matmul_precision(config: LoopConfig) -> Iterator[None]:
    """Allow TF32 in matmuls while the loop runs when the precision is `tf32`."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = config.precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def call(model: nn.Module, inputs: Any) -> Any:
    """Call `model` with `inputs`: a mapping as keywords, a tuple or list as positionals, else one argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def optimizers_in_backward(make_optimizer: OptimizerFactory, parameters: Any) -> list[torch.optim.Optimizer]:
    """One optimizer for each parameter, which steps in the backward pass: gradients never exist all at once.

    After PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass". It rules out what
    looks at all gradients between the backward pass and the step: accumulation, clipping by norm, a `GradScaler`.

    Args:
        make_optimizer: Makes an optimizer of a list of parameters.
        parameters: Parameters that require a gradient.
    """
    optimizers = []
    for parameter in parameters:
        optimizer = make_optimizer([parameter])
        parameter.register_post_accumulate_grad_hook(functools.partial(_step_now, optimizer))
        optimizers.append(optimizer)
    return optimizers


def _step_now(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    optimizer.step()
    optimizer.zero_grad()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    next_batch: Callable[[], tuple[Any, Any]],
    criterion: Criterion,
    config: LoopConfig,
    mark: Mark,
) -> None:
    """Run `config.steps` training steps.

    The previous step's batch, output and loss stay referenced until they are overwritten, as in real scripts.

    Args:
        model: The model on its device, in training mode.
        optimizer: Built on the model's parameters; None when they are updated in the backward pass.
        next_batch: Returns `(inputs, target)` on the device.
        criterion: Maps `(output, target)` to a scalar loss.
        config: The loop.
        mark: Called with `forward`, `backward`, `optimizer` and `end` at the borders of the phases.

    Raises:
        InputError: the criterion returned something that has no backward pass.
    """
    # Everywhere but fp16 a GradScaler is left out, not disabled: it then allocates nothing.
    scaler = torch.amp.GradScaler("cuda") if config.precision == "amp-fp16" else None
    for _ in range(config.steps):
        mark("forward")
        for micro in range(config.accumulate):
            inputs, target = next_batch()
            if micro == 0:
                if optimizer is not None:
                    optimizer.zero_grad(set_to_none=config.zero_grad == "none")
            else:
                mark("forward")
            with autocast(config):
                output = call(model, inputs)
                loss = _checked_loss(criterion(output, target))
                if config.accumulate > 1:
                    loss = loss / config.accumulate
            mark("backward")
            (loss if scaler is None else scaler.scale(loss)).backward()
        mark("optimizer")
        if optimizer is None:
            mark("end")
            continue
        if config.clip_grad_norm is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        mark("end")


def _checked_loss(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise InputError(
            f"the criterion returned {type(loss).__name__}, not a tensor",
            "return the scalar loss itself, without .item()",
        )
    if loss.numel() != 1:
        raise InputError(
            f"the criterion returned a tensor of shape {tuple(loss.shape)}, which has no backward pass of its own",
            "reduce it to a scalar, for example with .mean()",
        )
    if not loss.requires_grad:
        raise InputError(
            "the loss depends on no parameter that is trained",
            "compute it from the model's output, without .detach() or torch.no_grad(); for inference pass mode='infer'",
        )
    return loss


def train_with(
    step: Step,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    next_batch: Callable[[], tuple[Any, Any]],
    config: LoopConfig,
    mark: Mark,
) -> None:
    """Run the user's own `step(model, optimizer, batch)`, where `batch` is `inputs` or `(inputs, target)`."""
    for _ in range(config.steps):
        mark("forward")
        inputs, target = next_batch()
        batch = inputs if target is None else (inputs, target)
        result = step(model, optimizer, batch)
        mark("end")
    del result


def infer(model: nn.Module, next_batch: Callable[[], tuple[Any, Any]], config: LoopConfig, mark: Mark) -> None:
    """Run `config.steps` forward passes under `torch.inference_mode()`; an output lives until the next one."""
    for _ in range(config.steps):
        mark("forward")
        with torch.inference_mode():
            inputs, _ = next_batch()
            with autocast(config):
                output = call(model, inputs)
        mark("end")
    del output
