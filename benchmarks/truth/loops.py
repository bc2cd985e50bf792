"""Steps that differ from gpumem's reference loop, as functions for `extract(step=...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
"""DistributedDataParallel's caps after the first backward (facts/workspaces.md section 10)."""


def forward_only(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """Forward and loss in training mode; the graph is dropped without a backward, so there is nothing to step with."""
    images, target = batch
    functional.cross_entropy(model(images), target)
    optimizer.step()


def forward_only_for_input(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """The same with frozen parameters, batch norms in eval mode and an input that requires its gradient."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    images, target = batch
    functional.cross_entropy(model(images.requires_grad_()), target)
    optimizer.step()


class DistributedStep:
    """One rank of DistributedDataParallel before torch 2.0; gradients are zeroed before each backward, not freed.

    Its buckets are one more copy of the gradients (`gradient_as_bucket_view=False`), parameters in reverse order.

    Args:
        criterion: Maps output and target to the loss.
        clip_grad_norm: `max_norm`, or None.
        keep_output: Whether the script's variables keep output and loss until the next step overwrites them.
    """

    def __init__(
        self,
        criterion: Callable[[Any, Any], torch.Tensor],
        clip_grad_norm: float | None = None,
        *,
        keep_output: bool = False,
    ) -> None:
        self._criterion = criterion
        self._clip_grad_norm = clip_grad_norm
        self._keep_output = keep_output
        self._model: nn.Module | None = None
        self._buckets: list[torch.Tensor] = []

    def _allocate_buckets(self, model: nn.Module) -> None:
        # Each trace comes with its own copy of the model.
        if self._model is model:
            return
        self._model, self._buckets = model, []
        pending, cap = 0, FIRST_BUCKET_BYTES
        parameters = [p for p in model.parameters() if p.requires_grad][::-1]
        for parameter in parameters:
            pending += parameter.numel()
            if pending * parameter.element_size() >= cap or parameter is parameters[-1]:
                self._buckets.append(torch.zeros(pending, dtype=parameter.dtype, device=parameter.device))
                pending, cap = 0, BUCKET_BYTES

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> Any:
        """One step; what it returns stays alive until the next one returns."""
        self._allocate_buckets(model)
        inputs, target = batch
        output = model(inputs)
        loss = self._criterion(output, target)
        kept = (output, loss) if self._keep_output else None
        del output
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        if self._clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self._clip_grad_norm)
        optimizer.step()
        return kept


class ProfiledStep:
    """The step of xMem's measured runs, in full precision: variables of its loop live until they are overwritten.

    Args:
        zero_grad: `start` of the step, or `backward`: between the loss and the backward pass, so that the gradients of
            the step before live through the forward pass.
    """

    def __init__(self, zero_grad: str) -> None:
        self._zero_grad = zero_grad
        self._model: nn.Module | None = None
        self._output: Any = None
        self._loss: Any = None
        self._best: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # What a trace left does not travel to the device.
        return {"_zero_grad": self._zero_grad, **dict.fromkeys(("_model", "_output", "_loss", "_best"))}

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        """One step."""
        if self._model is not model:
            self._model, self._output, self._loss, self._best = model, None, None, None
        if self._zero_grad == "start":
            optimizer.zero_grad()
        if isinstance(batch, dict):
            self._output = model(**batch)
            self._loss = self._output.loss
        else:
            images, target = batch
            self._output = model(images)
            self._loss = functional.cross_entropy(self._output, target)
        if self._zero_grad == "backward":
            optimizer.zero_grad()
        self._loss.backward()
        optimizer.step()
        if not isinstance(batch, dict):
            self._best = self._output.max(1)
