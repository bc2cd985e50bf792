"""The whole front of memory against time of one loop: every plan on it was played on the allocator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpumem.errors import DoesNotFitError, InputError, PlanError
from gpumem.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from torch import nn

SCHEMA = 1
"""Version of the JSON form."""
_LARGEST_FRONT = 512


@dataclass(frozen=True)
class FrontPoint:
    """A plan that needs fewer bytes than all that recompute less.

    Attributes:
        device_bytes: A budget for the whole process within which it was seen to get through, upper end.
        regions: Region to its checkpoint option; all others keep what autograd saves.
        step_seconds: Least time of one micro-batch without recomputation, by the card's roofline.
        recompute_seconds: The same for what is run again.
        samples_per_second: Upper limit by the card's roofline.
    """

    device_bytes: int
    regions: Mapping[str, str]
    step_seconds: float
    recompute_seconds: float
    samples_per_second: float

    @property
    def overhead(self) -> float:
        """Recomputation as a share of the step without it."""
        return self.recompute_seconds / self.step_seconds if self.step_seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Front:
    """Plans of one loop at one batch size, from the fewest bytes to the least recomputation.

    Attributes:
        model: Class of the model.
        input: Its input, in words.
        batch: Samples per micro-batch.
        precision: As in `gpumem.extract`.
        optimizer: The optimizer, in words.
        gpu: Card whose kernels and rates were assumed.
        region_count: Regions that could be checkpointed.
        points: The plans.
        notes: What was assumed, and what could not be considered.
    """

    model: str
    input: str
    batch: int
    precision: str
    optimizer: str
    gpu: str
    region_count: int
    points: tuple[FrontPoint, ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[FrontPoint]:
        return iter(self.points)

    def __getitem__(self, number: int) -> FrontPoint:
        return self.points[number]

    def within(self, budget: int | str) -> FrontPoint:
        """The plan with the least recomputation for a budget.

        Raises:
            DoesNotFitError: no plan of the front is so small.
            BudgetError: a budget that cannot be read.
        """
        budget_bytes = parse_bytes(budget)
        fitting = [point for point in self.points if point.device_bytes <= budget_bytes]
        if not fitting:
            least = self.points[0].device_bytes
            raise DoesNotFitError(
                f"no plan of the front fits in {format_bytes(budget_bytes)}: the least needs {format_bytes(least)}",
                "a smaller batch, or gpumem.plan() with more axes",
                budget_bytes,
                least,
            )
        return fitting[-1]

    def to_json(self) -> str:
        """The JSON form; `from_json` reads it."""
        return json.dumps({"schema": SCHEMA, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Front:
        """Read the JSON form.

        Raises:
            PlanError: it is no front, or one of a newer gpumem.
        """
        try:
            fields = json.loads(text)
            schema = fields.pop("schema")
            fields["points"] = tuple(FrontPoint(**point) for point in fields["points"])
            fields["notes"] = tuple(fields["notes"])
            front = cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PlanError(f"this is no front: {error}", "Front.to_json() writes one") from error
        if schema != SCHEMA:
            raise PlanError(f"front schema {schema} is not supported (this gpumem reads schema {SCHEMA})")
        return front

    def __str__(self) -> str:
        from gpumem.planning.front_text import front_text

        return front_text(self)


_QUESTION = ("gpu", "stack", "context", "alloc_conf", "cudnn_benchmark", "conv_workspaces")


def find_front(
    model: nn.Module, input: Any, batch: int, points: int, loop: Mapping[str, Any], target: Mapping[str, Any]
) -> Front:
    """The front; see `gpumem.pareto`."""
    from gpumem.planning.loops import PlannedLoop

    if isinstance(points, bool) or not isinstance(points, int) or not 2 <= points <= _LARGEST_FRONT:
        raise InputError(f"points must be an integer from 2 to {_LARGEST_FRONT}, not {points!r}")
    if loop["mode"] != "train":
        raise PlanError("a checkpoint plan is for training", "for inference there is nothing to checkpoint")
    if target.get("budget") is not None:
        raise InputError("the front is for every budget, and budget= was given", "gpumem.plan() is for one budget")
    planned = PlannedLoop(model, input, (batch,), {**loop, "accumulate": min(loop["accumulate"], 2)})
    question = {name: value for name, value in target.items() if name in _QUESTION}
    report = planned.kept().estimate(batch, **question).to_dict()
    found, step_ps = planned.space.pareto_front(batch, points=points, **question)
    scale = 1e12 * planned.loop["accumulate"]
    return Front(
        model=type(model).__name__,
        input=report["input"],
        batch=batch,
        precision=loop["precision"],
        optimizer=report["optimizer"],
        gpu=report["gpu"],
        region_count=planned.region_count,
        points=tuple(
            FrontPoint(
                reserved_bytes + report["context"]["high"],
                planned.joined(choice)[1],
                step_ps / scale,
                recompute_ps / scale,
                batch * scale / max(step_ps + recompute_ps, 1),
            )
            for choice, reserved_bytes, recompute_ps in found
        ),
        notes=(*planned.notes, *report["assumptions"]),
    )
