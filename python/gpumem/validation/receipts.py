"""A receipt as a test case: the prediction is made anew and compared with what was measured then. Needs no device."""

from __future__ import annotations

import json
from typing import Any

from gpumem.errors import InputError, ModelMismatchError, SpecError
from gpumem.extraction.keywords import loop_keywords
from gpumem.extraction.loop_tracer import LoopTracer
from gpumem.extraction.question import ask
from gpumem.text import input_from_text
from gpumem.validation.compare import Difference, differences
from gpumem.validation.measurement import DeviceFacts, Measurement
from gpumem.validation.result import SCHEMA

_TARGET = ("context", "library_workspaces")


def replay(receipt: str, model: Any = None) -> tuple[Difference, ...]:
    """Predict the loop of a receipt with this version of gpumem, for the card and PyTorch of the receipt.

    The trace is of the installed PyTorch: with another version than the receipt's, models may do other things.

    Args:
        receipt: From `Validation.receipt()`.
        model: The module, where the receipt's was not given by name.

    Returns:
        The four quantities: the new prediction beside the old measurement.

    Raises:
        SpecError: it is no receipt, or one of a newer gpumem.
        InputError: its model has no name.
        ModelMismatchError: the model has changed.
        GpumemError: as for `gpumem.extract`.
    """
    kept = _read(receipt)
    predicted, loop = kept["predicted"], dict(kept["loop"])
    target = {name: loop.pop(name) for name in _TARGET if name in loop}
    target |= {name: predicted[name] or None for name in ("gpu", "stack", "alloc_conf")}
    input = loop.pop("input", None)
    mode = predicted["mode"]
    if mode == "infer":
        # Its text says that there is none.
        loop.pop("optimizer", None)
    module, input = _model(kept, model, mode, None if input is None else input_from_text(input))
    keywords = loop_keywords({"mode": mode, **loop})
    batch, budget, regions = predicted["batch"], kept["budget_bytes"], kept["regions"]
    spec = LoopTracer(ask(module, input, **keywords), caches=regions is None).spec((batch,), regions)
    measured, device = Measurement.from_dict(kept["measured"]), DeviceFacts(**kept["device"])
    report = limited = spec.estimate(batch, budget=budget, **target)
    if budget is not None and measured.allowed_bytes is not None:
        context = budget - measured.allowed_bytes
        limited = spec.estimate(batch, budget=budget, **{**target, "context": context})
    return differences(report, limited, measured, device, None)


def _read(receipt: str) -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(receipt)
        schema = kept["receipt"]
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError("this is no receipt", "Validation.receipt() writes one") from error
    if schema != SCHEMA:
        raise SpecError(f"receipt schema {schema} is not supported (this gpumem reads schema {SCHEMA})")
    return kept


def _model(kept: dict[str, Any], model: Any, mode: str, input: Any) -> tuple[Any, Any]:
    from gpumem.checkpointing import check_fingerprint
    from gpumem.extraction.traceable import traceable
    from gpumem.sources import resolve

    if model is None:
        if ":" not in kept["model"]:
            raise InputError(f"the receipt's model ({kept['model']}) has no name to build it by", "pass it: model=")
        source = resolve(kept["model"], mode=mode, input=input)
        model, input = source.model, source.input
    try:
        check_fingerprint(traceable(model, mode)[0], kept["fingerprint"])
    except ModelMismatchError as error:
        raise ModelMismatchError(
            error.message.replace("plan", "receipt"), "the receipt is for the model it had"
        ) from error
    return model, input
