"""What a validation is asked about, in one form: a model, its loop, and the prediction or plan that came with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from gpumem._core import Report
from gpumem.errors import InputError, UnknownNameError
from gpumem.extraction.keywords import loop_keywords
from gpumem.extraction.options import check_batch
from gpumem.extraction.traceable import traceable
from gpumem.planning import Plan
from gpumem.text import optimizer_from_text

_FROM_PLAN = ("precision", "accumulate")
# The rest of the loop that a plan states, with the default that a caller may pass without meaning it.
_STATED = {"channels_last": False, "zero_grad": "none", "step_in_backward": False}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One loop to run.

    Attributes:
        name: Name that the model was asked for by, or None.
        module: The model.
        given_input: The caller's description of the input.
        input: The same, or what the model's source says.
        batch: Batch size, or None.
        loop: Keywords of `gpumem.extract`, but `batches` and `gpu`.
        plan: The plan to apply, or None.
        report: The prediction to check, or None to make one.
        assumptions: What was assumed in building the model.
    """

    name: str | None
    module: nn.Module
    given_input: Any
    input: Any
    batch: int | None
    loop: Mapping[str, Any]
    plan: Plan | None
    report: Report | None
    assumptions: tuple[str, ...]

    @property
    def regions(self) -> Mapping[str, str] | None:
        """Checkpointed regions of the plan; None without one."""
        return None if self.plan is None else self.plan.regions

    @property
    def label(self) -> str:
        """The model for people."""
        return self.name or type(self.module).__name__

    def loop_facts(self, report: Report) -> dict[str, Any]:
        """Settings that are not the defaults, for a receipt."""
        defaults = loop_keywords({})
        facts = {name: value for name, value in self.loop.items() if value != defaults[name] and name != "optimizer"}
        facts = {name: _as_json(value) for name, value in facts.items()}
        facts["optimizer"] = report.to_dict()["optimizer"]
        if self.given_input is not None:
            facts["input"] = _shape_text(self.given_input)
        return facts


def subject_of(
    asked: Any, input: Any, *, model: Any, batch: Any, gpu: str | None, keywords: Mapping[str, Any]
) -> Subject:
    """Read the arguments of `gpumem.validate`.

    Args:
        asked: A module, its name, a `Plan` or a `Report`.
        input: Description of the input.
        model: Module or name, for a plan or a report.
        batch: Batch size, or None.
        gpu: Card whose kernels are assumed.
        keywords: Those of `gpumem.extract`.

    Raises:
        InputError: they do not go together.
        UnknownNameError: there is no such model.
        ModelMismatchError: the plan was made for another model.
    """
    plan = asked if isinstance(asked, Plan) else None
    report = asked if isinstance(asked, Report) else None
    if plan is None and report is None:
        if model is not None:
            raise InputError("model= goes with a plan or a report", "pass the model alone, as the first argument")
        model = asked
    elif model is None:
        kind = "plan" if plan is not None else "report"
        raise InputError(f"a {kind} does not hold its model", f"pass it: gpumem.validate({kind}, model=model)")
    if plan is not None:
        keywords = _of_plan(plan, keywords)
        batch = _same("batch", batch, plan.batch)
    if report is not None:
        keywords = _of_report(report, keywords)
        batch = _same("batch", batch, report.batch)
    loop = loop_keywords({**keywords, "gpu": gpu})
    name, module, found_input, assumptions = _built(model, input, loop["mode"])
    if plan is not None:
        from gpumem.checkpointing import check_fingerprint

        check_fingerprint(traceable(module, loop["mode"])[0], plan.fingerprint, dtypes=False)
    return Subject(
        name=name,
        module=module,
        given_input=input,
        input=found_input,
        batch=None if batch is None else check_batch(batch),
        loop=loop,
        plan=plan,
        report=report,
        assumptions=assumptions,
    )


def _built(model: Any, input: Any, mode: str) -> tuple[str | None, nn.Module, Any, tuple[str, ...]]:
    if not isinstance(model, str):
        # `extract` says what is wrong with what is no module.
        return None, model, input, ()
    from gpumem.sources import resolve
    from gpumem.text import input_from_text

    given = input_from_text(input) if isinstance(input, str) else input
    source = resolve(model, mode=mode, input=given)
    return model, source.model, source.input, tuple(source.assumptions)


def _of_plan(plan: Plan, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The loop of a plan: what it chose is fixed, its optimizer is taken from its text unless it is given."""
    # From the second micro-batch on memory does not change, and the plan was made with at most two.
    chosen = {name: getattr(plan, name) for name in (*_FROM_PLAN, *_STATED)}
    chosen["accumulate"] = min(plan.accumulate, 2)
    for name in (*_FROM_PLAN, *_STATED):
        given = keywords.get(name, getattr(plan, name))
        if given != getattr(plan, name) and not (name in _STATED and given == _STATED[name]):
            raise InputError(f"{name}={keywords[name]!r}, and the plan has {getattr(plan, name)!r}", "leave it out")
    return {"optimizer": _optimizer_of(plan.optimizer, keywords), **keywords, **chosen}


def _of_report(report: Report, keywords: Mapping[str, Any]) -> dict[str, Any]:
    facts = report.to_dict()
    for name in ("mode", "precision"):
        _same(name, keywords.get(name), facts[name])
    said = {"mode": facts["mode"], "precision": facts["precision"]}
    if facts["mode"] == "train":
        said["optimizer"] = _optimizer_of(facts["optimizer"], keywords)
    return {**said, **keywords}


def _optimizer_of(text: str, keywords: Mapping[str, Any]) -> Any:
    """The optimizer that a plan or report names in words."""
    if "optimizer" in keywords:
        return keywords["optimizer"]
    from gpumem.extraction.optimizer import optimizer_factory

    try:
        optimizer = optimizer_from_text(text)
        optimizer_factory(optimizer)
    except (InputError, UnknownNameError) as error:
        raise InputError(f"the optimizer {text!r} is your own", "pass it: optimizer=") from error
    return optimizer


def _same(name: str, given: Any, fixed: Any) -> Any:
    if given is not None and given != fixed:
        raise InputError(f"{name}={given!r}, and the prediction is for {name}={fixed!r}", "leave it out")
    return fixed


def _as_json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__qualname__", repr(value))


def _shape_text(input: Any) -> str:
    """An input as the command line writes it, where it can."""
    if isinstance(input, str):
        return input
    if isinstance(input, tuple) and input and all(type(size) is int for size in input):
        return ",".join(map(str, input))
    from gpumem.extraction.inputs import describe, parse_input

    return describe(parse_input(input))
