"""The target of a criterion that was given without one: by what the criterion is, else by what it accepts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpumem.extraction.criterion import choose_criterion
from gpumem.extraction.inputs import TensorSpec, describe, make_inputs
from gpumem.loop import AUTOCAST_DTYPES, Criterion

_LIKE_OUTPUT: tuple[Any, ...] = (
    nn.BCELoss, nn.BCEWithLogitsLoss, nn.HuberLoss, nn.KLDivLoss, nn.L1Loss, nn.MSELoss, nn.MultiLabelSoftMarginLoss,
    nn.PoissonNLLLoss, nn.SmoothL1Loss, nn.SoftMarginLoss,
    functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits, functional.huber_loss,
    functional.kl_div, functional.l1_loss, functional.mse_loss, functional.multilabel_soft_margin_loss,
    functional.poisson_nll_loss, functional.smooth_l1_loss, functional.soft_margin_loss,
)  # fmt: skip
_CLASS_INDICES: tuple[Any, ...] = (
    nn.CrossEntropyLoss, nn.MultiMarginLoss, nn.NLLLoss,
    functional.cross_entropy, functional.multi_margin_loss, functional.nll_loss,
)  # fmt: skip
_INDEX = TensorSpec((), torch.int64)
# PyTorch's warning before it broadcasts a target of another shape, which is hardly ever meant.
_BROADCAST = "Using a target size"


def target_for(criterion: Criterion, output: Any, batch: int, precision: str) -> TensorSpec:
    """The target to trace `criterion` with. Where the traced environment is on: unknown criteria are tried.

    Args:
        criterion: `(output, target) -> loss`.
        output: What the model returned at this batch size.
        batch: Batch size.
        precision: Precision of the loop; under autocast a target stays in float32.
    """
    candidates = list(_candidates(output, batch, precision))
    if _is_one_of(criterion, _LIKE_OUTPUT):
        return candidates[-1]
    if _is_one_of(criterion, _CLASS_INDICES):
        return _class_indices(output, batch)
    accepted = (candidate for candidate in candidates if _accepts(criterion, output, candidate, batch))
    return next(accepted, candidates[0])


def sentence(target: TensorSpec) -> str:
    """What the report says about a chosen target."""
    return f"target of the criterion: {describe(target)}, chosen by the criterion and the output"


def _is_one_of(criterion: Any, known: tuple[Any, ...]) -> bool:
    return any(criterion is each or type(criterion) is each for each in known)


def _candidates(output: Any, batch: int, precision: str) -> Iterator[TensorSpec]:
    """From the commonest to the one that a regression takes."""
    yield _INDEX
    if not isinstance(output, torch.Tensor) or output.dim() == 0 or output.shape[0] != batch:
        return
    by_shape = choose_criterion(output, batch)
    if by_shape is not None and by_shape.target is not None:
        yield by_shape.target
    yield TensorSpec(tuple(output.shape[1:]), torch.float32 if precision in AUTOCAST_DTYPES else output.dtype)


def _class_indices(output: Any, batch: int) -> TensorSpec:
    if not isinstance(output, torch.Tensor) or output.dim() < 2 or output.shape[0] != batch:
        return _INDEX
    return TensorSpec(tuple(output.shape[2:]), torch.int64)


def _accepts(criterion: Criterion, output: Any, target: TensorSpec, batch: int) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=_BROADCAST)
            criterion(output, make_inputs(target, batch, "cuda", None, channels_last=False))
    except Exception:
        return False
    return True
