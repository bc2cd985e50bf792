"""One trace of a sweep: what is asked, and the function that an executor runs. Everything here pickles."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpumem.errors import BatchDependentError, GpumemError, SpecError
from gpumem.sources import Source
from gpumem.sweeping.models import Model

SCHEMA = 1
"""Version of the JSON form of `Traced`."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A trace.

    Attributes:
        model: Name or factory.
        loop: Keywords of `gpumem.extract`, `input` and `gpu` among them.
        batch: The only batch size to trace, or None for a spec of all.
        planned: Whether the loop is traced in all its checkpoint variants.
    """

    model: Model
    loop: Mapping[str, Any]
    batch: int | None = None
    planned: bool = False


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What came of a job.

    Attributes:
        spec: A `ModelSpec` as JSON; None when there is none.
        space: All checkpoint plans as JSON (`RegionSpace`), for a planned job.
        all_regions: The plan in which every region is checkpointed, a variant for each.
        notes: What was assumed in building the model.
        error: Message and hint when the loop cannot be traced.
        is_batch_dependent: Whether the error is that each batch size needs a trace of its own.
        seconds: Of building and tracing.
    """

    spec: str | None = None
    space: str | None = None
    all_regions: tuple[int, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())
    error: tuple[str, str] | None = None
    is_batch_dependent: bool = False
    seconds: float = 0.0

    def to_json(self) -> str:
        """The JSON form; `from_json` reads it."""
        return json.dumps({"schema": SCHEMA, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Traced:
        """Read the JSON form.

        Raises:
            SpecError: it is damaged, or of another schema.
        """
        try:
            fields = json.loads(text)
            if fields.pop("schema") != SCHEMA:
                raise SpecError("a trace of another schema")
            fields["all_regions"] = tuple(fields["all_regions"])
            fields["notes"] = tuple(fields["notes"])
            fields["error"] = None if fields["error"] is None else tuple(fields["error"])
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"the trace is damaged: {error}") from error


def run(job: Job) -> Traced:
    """Build the model and trace its loop; whatever goes wrong is part of the answer."""
    start = time.perf_counter()
    try:
        done = _planned(job) if job.planned else _plain(job)
    except GpumemError as error:
        return Traced(
            error=(error.message, error.hint),
            is_batch_dependent=isinstance(error, BatchDependentError),
            seconds=time.perf_counter() - start,
        )
    except Exception as error:
        # The user's factory, or a library's constructor.
        return Traced(error=(f"{type(error).__name__}: {error}", ""), seconds=time.perf_counter() - start)
    return Traced(**{**done, "seconds": time.perf_counter() - start})


def _plain(job: Job) -> dict[str, Any]:
    from gpumem.extraction import extract

    source = _source(job)
    batches: dict[str, Any] = {} if job.batch is None else {"batches": (job.batch,)}
    spec = extract(source.model, source.input, **_without_input(job), **batches)
    return {"spec": spec.to_json(), "notes": tuple(source.assumptions)}


def _planned(job: Job) -> dict[str, Any]:
    from gpumem.extraction import TRACED_BATCHES
    from gpumem.extraction.keywords import loop_keywords
    from gpumem.planning.loops import PlannedLoop

    source = _source(job)
    batches = TRACED_BATCHES if job.batch is None else (job.batch,)
    planned = PlannedLoop(source.model, source.input, batches, loop_keywords(_without_input(job)))
    # Variant 1 checkpoints whole regions, where it can be traced.
    whole = [
        int("checkpoint" in planned.variant_names[1:2] and planned.is_allowed(r, 1)) for r in range(planned.places)
    ]
    notes = (*source.assumptions, *planned.notes)
    return {"space": planned.space.to_json(), "all_regions": tuple(whole), "notes": notes}


def _without_input(job: Job) -> dict[str, Any]:
    return {name: value for name, value in job.loop.items() if name != "input"}


def _source(job: Job) -> Source:
    from gpumem.extraction.trace import one_at_a_time
    from gpumem.sources import from_factory, resolve

    given = job.loop.get("input")
    # Weights are drawn: in another thread, a trace would take that for random numbers of its own loop.
    with one_at_a_time:
        if isinstance(job.model, str):
            return resolve(job.model, mode=job.loop.get("mode", "train"), input=given)
        return from_factory.built(job.model, getattr(job.model, "__qualname__", repr(job.model)), given)
