"""`Plan`: what to change in a training script so that it fits, what it needs, what it costs; read without torch."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gpumem._core import Report
from gpumem.checkpointing import code as regions_code
from gpumem.checkpointing.loop_code import loop_code
from gpumem.checkpointing.options import check_option
from gpumem.errors import GpumemError, PlanError

if TYPE_CHECKING:
    from torch import nn

    from gpumem.checkpointing import Applied

SCHEMA = 1
"""Version of the JSON form."""


@dataclass(frozen=True)
class Alternative:
    """Another answer, for comparison.

    Attributes:
        what: In words.
        batch: Samples per micro-batch.
        device_peak_bytes: Bytes of the whole process, upper end.
        overhead: Recomputation as a share of the step without it.
    """

    what: str
    batch: int
    device_peak_bytes: int
    overhead: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A batch size, a precision and a choice of checkpointed regions that fit a budget.

    Attributes:
        model: Class of the model.
        fingerprint: Structure of the model (`gpumem.checkpointing.fingerprint`).
        batch: Samples per micro-batch.
        accumulate: Micro-batches per optimizer step.
        precision: As in `gpumem.extract`.
        optimizer: The optimizer, in words.
        channels_last: As in `gpumem.extract`, like the next two.
        zero_grad: `none` or `zero`.
        step_in_backward: Whether each parameter is updated as soon as its gradient is complete.
        regions: Region to its checkpoint option; all others keep what autograd saves.
        region_count: Regions that could have been checkpointed.
        caches_off: Whether `use_cache` of a transformers model is switched off.
        gpu: Card whose kernels and rates were assumed.
        budget_bytes: Bytes for the whole process.
        report: The loop with the plan applied, traced as it runs.
        step_seconds: Least time of one micro-batch without recomputation: the card's roofline, without launches.
        recompute_seconds: The same for what is run again.
        recompute_bound_seconds: No plan of these regions within the budget recomputes less than this.
        objective: What was asked for: `batch`, `throughput` or `fixed`.
        alternatives: Other answers.
        notes: What the search could not consider, and why.
    """

    model: str
    fingerprint: str
    batch: int
    accumulate: int
    precision: str
    optimizer: str
    regions: Mapping[str, str]
    region_count: int
    caches_off: bool
    gpu: str
    budget_bytes: int
    report: Report
    step_seconds: float
    recompute_seconds: float
    recompute_bound_seconds: float
    objective: str
    channels_last: bool = False
    zero_grad: str = "none"
    step_in_backward: bool = False
    alternatives: tuple[Alternative, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())

    @property
    def overhead(self) -> float:
        """Recomputation as a share of the step without it; relative, from the card's roofline."""
        return self.recompute_seconds / self.step_seconds if self.step_seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Upper limit by the card's roofline, for comparing plans; no launch overhead, no data loading."""
        seconds = self.step_seconds + self.recompute_seconds
        return self.batch / seconds if seconds else 0.0

    def apply(self, model: nn.Module) -> AppliedPlan:
        """Checkpoint the chosen regions of `model`, in place; names in its `state_dict` stay.

        Raises:
            ModelMismatchError: the plan was made for another model; the message names the first difference.
            RegionError: a plan is applied already, or the model is wrapped by DDP, FSDP or torch.compile.

        Warns:
            UserWarning: a region is in eval mode; it is not checkpointed before `train()`.
        """
        from gpumem.checkpointing import apply_regions, check_fingerprint
        from gpumem.checkpointing.caches import switch_caches_off

        check_fingerprint(model, self.fingerprint, dtypes=False)
        applied = apply_regions(model, self.regions)
        asleep = [name for name in self.regions if not model.get_submodule(name.partition("[")[0]).training]
        if asleep:
            more = f" and {len(asleep) - 1} more regions" if len(asleep) > 1 else ""
            warnings.warn(
                f"'{asleep[0]}'{more} are in eval mode: checkpointed from train() on, not before", stacklevel=2
            )
        return AppliedPlan(self, applied, switch_caches_off(model) if self.caches_off else [])

    def code(self) -> str:
        """The plan as Python to paste into a script: plain torch, no gpumem in it."""
        return regions_code(self.regions, precision=self.precision, caches_off=self.caches_off) + loop_code(
            channels_last=self.channels_last, zero_grad=self.zero_grad, step_in_backward=self.step_in_backward
        )

    def to_json(self) -> str:
        """The JSON form; `from_json` reads it."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("report", "regions")}
        fields["alternatives"] = [asdict(alternative) for alternative in self.alternatives]
        fields["regions"] = dict(self.regions)
        fields["report"] = self.report.to_dict()
        return json.dumps({"schema": SCHEMA, **fields})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read the JSON form.

        Raises:
            PlanError: it is no plan, or one of a newer gpumem.
        """
        try:
            fields = json.loads(text)
            schema = fields.pop("schema")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise PlanError("this is no plan", "Plan.to_json() writes one") from error
        if schema != SCHEMA:
            raise PlanError(f"plan schema {schema} is not supported (this gpumem reads schema {SCHEMA})")
        try:
            fields["report"] = Report.from_json(json.dumps(fields["report"]))
            fields["alternatives"] = tuple(Alternative(**item) for item in fields["alternatives"])
            fields["notes"] = tuple(fields["notes"])
            for name, option in dict(fields["regions"]).items():
                check_option(name, option)
            return cls(**fields)
        except GpumemError as error:
            raise PlanError(f"the plan is damaged: {error.message}", error.hint) from error
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(f"the plan is damaged: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan.from_json, (self.to_json(),)

    def __str__(self) -> str:
        from gpumem.planning.text import plan_text

        return plan_text(self)


@dataclass(frozen=True)
class AppliedPlan:
    """A plan that is in place; as a context manager it is undone at the end.

    Attributes:
        plan: The plan.
        regions: What is checkpointed.
    """

    plan: Plan
    regions: Applied
    _configs: list[Any]

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Context for the forward pass and the loss: the plan's precision."""
        import torch

        from gpumem.loop import AUTOCAST_DTYPES

        dtype = AUTOCAST_DTYPES.get(self.plan.precision)
        return contextlib.nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype)

    def optimizers(self, make_optimizer: Callable[[Any], Any]) -> list[Any]:
        """The optimizers of the plan's loop: one of all parameters, or one for each.

        In the second case they step in the backward pass, and the loop calls neither `step` nor `zero_grad`.

        Args:
            make_optimizer: Makes an optimizer of a list of parameters.
        """
        from gpumem.loop import optimizers_in_backward

        parameters = [parameter for parameter in self.regions.model.parameters() if parameter.requires_grad]
        if self.plan.step_in_backward:
            return optimizers_in_backward(make_optimizer, parameters)
        return [make_optimizer(parameters)]

    def scaler(self) -> Any:
        """A `GradScaler` for amp-fp16, a disabled one otherwise."""
        import torch

        return torch.amp.GradScaler("cuda", enabled=self.plan.precision == "amp-fp16")

    def undo(self) -> None:
        """Give the model back as it was."""
        from gpumem.checkpointing.caches import switch_caches_on

        self.regions.undo()
        switch_caches_on(self._configs)
        self._configs.clear()

    def __enter__(self) -> nn.Module:
        return self.regions.model

    def __exit__(self, *error: object) -> None:
        self.undo()
