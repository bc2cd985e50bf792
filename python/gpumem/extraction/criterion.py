"""The default loss: chosen from what the model returns, and always reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from gpumem.extraction.inputs import TensorSpec


@dataclasses.dataclass(frozen=True)
class ChosenCriterion:
    """A loss and the target it needs.

    Attributes:
        function: Maps `(output, target)` to a scalar tensor.
        target: Tree of `TensorSpec` for the target, or None when the loss needs none.
        description: What the report says.
        assumption: What was guessed about the target of a criterion that was given, or an empty string.
    """

    function: Any
    target: TensorSpec | None
    description: str
    assumption: str = ""


def _field(output: Any, name: str) -> Any:
    value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return value if isinstance(value, torch.Tensor) else None


def _main_tensor(output: Any) -> torch.Tensor | None:
    """The tensor that carries the answer: the output itself, `.logits`, or the first floating tensor in it."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    logits = _field(output, "logits")
    if logits is not None:
        return logits  # type: ignore[no-any-return]
    if isinstance(output, Mapping):
        values = list(output.values())
    elif isinstance(output, (tuple, list)):
        values = list(output)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        values = [getattr(output, field.name) for field in dataclasses.fields(output)]
    else:
        return None
    return next((found for found in map(_main_tensor, values) if found is not None), None)


def model_loss(output: Any, target: Any) -> torch.Tensor:
    """The `loss` that the model itself returns."""
    loss = _field(output, "loss")
    assert loss is not None
    return loss  # type: ignore[no-any-return]


def _answers(output: Any) -> list[torch.Tensor]:
    """The main tensor, or every tensor of a list of alike ones: refined predictions, auxiliary heads."""
    main = _main_tensor(output)
    if main is None:
        return []
    if not isinstance(output, (tuple, list)):
        return [main]
    alike = [
        value
        for value in output
        if isinstance(value, torch.Tensor) and value.shape == main.shape and value.is_floating_point()
    ]
    return alike if len(alike) == len(output) else [main]


def _summed(loss: Callable[[torch.Tensor], torch.Tensor], output: Any) -> torch.Tensor:
    first, *others = _answers(output)
    total = loss(first)
    for other in others:
        total = total + loss(other)
    return total


def cross_entropy(output: Any, target: Any) -> torch.Tensor:
    """Cross-entropy with class indices; the classes are dimension 1."""
    return _summed(lambda logits: functional.cross_entropy(logits, target), output)


def token_cross_entropy(output: Any, target: Any) -> torch.Tensor:
    """Cross-entropy of `[batch, tokens, classes]` logits, flattened to rows."""
    return _summed(lambda logits: functional.cross_entropy(logits.flatten(0, -2), target.flatten()), output)


def mean_square(output: Any, target: Any) -> torch.Tensor:
    """Mean of squares."""
    return _summed(lambda main: main.float().pow(2).mean(), output)


def choose_criterion(output: Any, batch: int) -> ChosenCriterion | None:
    """The default criterion for what a model returned at this batch size; None when nothing in it can be a loss."""
    if _field(output, "loss") is not None:
        return ChosenCriterion(model_loss, None, "the model's own .loss")
    answers = _answers(output)
    if not answers:
        return None
    chosen = _by_shape(tuple(answers[0].shape), batch)
    if len(answers) == 1:
        return chosen
    return dataclasses.replace(chosen, description=f"{chosen.description}, summed over {len(answers)} outputs")


def _by_shape(shape: tuple[int, ...], batch: int) -> ChosenCriterion:
    batched = len(shape) >= 2 and shape[0] == batch
    if batched and len(shape) == 2:
        return ChosenCriterion(cross_entropy, TensorSpec((), torch.int64), "cross-entropy with class indices")
    if batched and len(shape) == 3:
        target = TensorSpec((shape[1],), torch.int64)
        return ChosenCriterion(token_cross_entropy, target, "cross-entropy per token (last dimension = classes)")
    if batched and len(shape) in (4, 5) and shape[1] > 1:
        target = TensorSpec(shape[2:], torch.int64)
        return ChosenCriterion(cross_entropy, target, "cross-entropy per pixel (dimension 1 = classes)")
    return ChosenCriterion(mean_square, None, "mean of squares of the output")
