"""One process on a device for any number of validations; `gpumem.validate` opens one for a single one."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, final

from gpumem._core import Report
from gpumem.errors import BudgetError, InputError, ValidationError
from gpumem.hardware import unconfirmed
from gpumem.units import format_bytes, parse_bytes
from gpumem.validation.bracket import Bracket, bracket_of
from gpumem.validation.compare import differences, verdict
from gpumem.validation.measurement import DeviceFacts, Measurement
from gpumem.validation.place import Place, card_of, parse_place
from gpumem.validation.process import NESTED, Child
from gpumem.validation.result import Validation
from gpumem.validation.sequence import Requests, compare_requests, predicted_requests
from gpumem.validation.subject import Subject, subject_of
from gpumem.virtual.environment import Device

DEFAULT_TIMEOUT_S = 300.0
"""Seconds that one run may take, building the model included."""

STEPS = 3
"""What "it fits" is about: setup and three steps."""


@final
class Session:
    """A device, how much of it may be used, and a process on it that is started when it is first needed.

    A run after another in the same process finds the allocator empty, but libraries loaded: the context's size is that
    of the first run or larger. A process that has crashed, hangs or cannot be emptied is replaced.

    Args:
        on: `cuda:0`, or `virtual:` and the name of a card.
        budget: Bytes for the whole process (`"24GB"`); None for all that the device has.
        context: Bytes that the CUDA context takes, if they are known.
        alloc_conf: `PYTORCH_CUDA_ALLOC_CONF`; that of this process when None.
        library_workspaces: False for convolutions without workspaces, on both sides (virtual devices only).
        timeout: Seconds that one run may take.

    Raises:
        InputError, UnknownNameError, BudgetError: an argument that cannot be meant.
    """

    def __init__(
        self,
        on: Any,
        *,
        budget: float | str | None = None,
        context: float | str | None = None,
        alloc_conf: str | None = None,
        library_workspaces: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        if os.environ.get(NESTED):
            raise ValidationError(
                "gpumem.validate was called while the process on the device loaded your program",
                'call it under `if __name__ == "__main__":`',
            )
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise InputError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.place: Place = parse_place(on)
        self.timeout = float(timeout)
        self._budget_bytes = None if budget is None else parse_bytes(budget)
        self._context_bytes = None if context is None else _context_bytes(context)
        self._alloc_conf = _own_alloc_conf() if alloc_conf is None else alloc_conf
        self._library_workspaces = library_workspaces
        if not library_workspaces and self.place.gpu is None:
            raise InputError("a real device takes its workspaces", "library_workspaces=False is for virtual devices")
        self._child: Child | None = None
        self._child_context: int | None = None
        self._device: DeviceFacts | None = None
        self._free_bytes = 0

    def validate(
        self, subject: Any, input: Any = None, *, batch: int | None = None, model: Any = None, bracket: bool = False,
        **keywords: Any,
    ) -> Validation:  # fmt: skip
        """See `gpumem.validate`; `keywords` are those of `gpumem.extract`."""
        gpu = keywords.pop("gpu", None) or self.place.gpu or card_of(self._started(self._context_bytes).facts)
        asked = subject_of(subject, input, model=model, batch=batch, gpu=gpu, keywords=keywords)
        return self._validate(asked, gpu, bracket)

    def _validate(self, asked: Subject, gpu: str | None, bracket: bool) -> Validation:
        from gpumem.extraction.loop_tracer import LoopTracer
        from gpumem.extraction.question import ask
        from gpumem.validation.job import job_of, pack

        target = self._target(gpu)
        batch = asked.batch if asked.batch is not None else _largest(asked, target, bracket)
        tracer = LoopTracer(ask(asked.module, asked.input, **asked.loop), caches=asked.regions is None)
        spec = tracer.spec((batch,), asked.regions)
        made: Report = spec.estimate(batch, **target)
        predicted = asked.report or made
        named = asked.name if asked.name is not None else asked.module
        package = pack(job_of(named, asked.given_input, tracer, batch, asked.loop, asked.regions, STEPS))

        context = self._set_aside(made, bracket)
        # What the allocator may take is a number in a run, not a range.
        limited = made if context is None else spec.estimate(batch, **{**target, "context": context})
        measured, sizes = self._run(package, batch, context)
        requests: Requests | None = None
        if sizes:
            timeline = spec.timeline(batch, **target)
            expected = predicted_requests(timeline, spec, STEPS)
            requests = compare_requests(expected, sizes, whole=measured.ran)
        device = self._device or self._started(context).facts
        rows = differences(predicted, asked.report or limited, measured, device, requests)
        notes = [*asked.assumptions, *self._notes(asked, predicted, made, measured, device, gpu)]
        found: Bracket | None = None
        if bracket:
            found = bracket_of(measured, lambda size: self._run(package, size, context)[0])
        from gpumem.checkpointing import fingerprint

        return Validation(
            model=asked.label,
            fingerprint=fingerprint(tracer.question.model),
            loop={**asked.loop_facts(made), **self._settings()},
            budget_bytes=self._budget_bytes,
            plan=asked.plan,
            predicted=predicted,
            device=device,
            measured=measured,
            differences=rows,
            requests="" if requests is None else requests.text(),
            verdict=verdict(predicted, measured, rows),
            notes=tuple(notes),
            bracket=found,
            gpumem=_version(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _target(self, gpu: str | None) -> dict[str, Any]:
        """Keywords of `ModelSpec.estimate`."""
        budget = self._budget_bytes
        if gpu is None and budget is None:
            budget = self._started(self._context_bytes).facts.total_bytes
        return {
            "gpu": gpu,
            "budget": budget,
            "context": self._context_bytes,
            "alloc_conf": self._alloc_conf or None,
            "library_workspaces": self._library_workspaces,
        }

    def _settings(self) -> dict[str, Any]:
        """What a receipt needs to make the same prediction again."""
        settings: dict[str, Any] = {} if self._context_bytes is None else {"context": self._context_bytes}
        return settings if self._library_workspaces else {**settings, "library_workspaces": False}

    def _started(self, context_bytes: int | None) -> Child:
        """The process, new where there is none yet or the last one cannot be used again."""
        child = self._child
        if child is not None and not child.spoiled and (self.place.gpu is None or self._child_context == context_bytes):
            return child
        self.close()
        virtual = None
        if self.place.gpu is not None:
            virtual = Device(
                gpu=self.place.gpu,
                total_bytes=self._budget_bytes,
                context_bytes=context_bytes,
                cudnn="real" if self._library_workspaces else "stub",
            )
        self._child = Child(self.place, virtual, self._alloc_conf)
        self._child_context = context_bytes
        self._device, self._free_bytes = self._child.facts, self._child.free_bytes
        return self._child

    def _run(self, package: Any, batch: int, context: int | None) -> tuple[Measurement, list[int]]:
        child = self._started(context)
        if self._budget_bytes is None or context is None:
            return child.run(package, batch, None, self.timeout)
        allowed = self._budget_bytes - context
        # A virtual device has the budget as its memory, a real one is limited by PyTorch.
        measured, sizes = child.run(package, batch, allowed if self.place.gpu is None else None, self.timeout)
        return replace(measured, allowed_bytes=allowed), sizes

    def _set_aside(self, made: Report, bracket: bool) -> int | None:
        """Bytes of a budget that are left to the context; None where nothing limits the run.

        The upper end, as in the prediction of what fits, unless the context is known.
        """
        if self._context_bytes is not None:
            return self._context_bytes
        high: int = made.to_dict()["context"]["high"]
        if self.place.gpu is not None:
            return high if bracket or self._budget_bytes is not None else None
        if self._budget_bytes is None:
            return None
        context = max(high, self._started(None).facts.context_bytes)
        if context >= self._budget_bytes:
            raise BudgetError(f"the CUDA context takes {format_bytes(context)}, and nothing of the budget is left")
        return context

    def _notes(
        self,
        asked: Subject,
        predicted: Report,
        made: Report,
        measured: Measurement,
        device: DeviceFacts,
        gpu: str | None,
    ) -> list[str]:
        notes = []
        if device.is_virtual:
            notes.append(
                "a virtual GPU runs PyTorch's own allocator; its context is the profile's figure, not a measurement"
            )
            if text := unconfirmed(self.place.gpu):
                notes.append(f"the virtual GPU is {text}")
        elif device.others_bytes:
            notes.append(f"before the run {format_bytes(device.others_bytes)} of the device were taken by others")
        if device.measured_by == "mem_get_info, difference":
            notes.append("NVML does not answer: device bytes are those of all processes on the device")
        free, allowed = self._free_bytes, measured.allowed_bytes
        if allowed is not None and free < allowed:
            notes.append(
                f"only {format_bytes(free)} of the device were free, less than the {format_bytes(allowed)} of the "
                "budget: an out-of-memory may be due to other processes"
            )
        if gpu is None:
            notes.append(f"there is no profile of {device.name}: the kernels of an RTX 3090 were assumed")
        if measured.guessed:
            notes.append(f"sizes that only a real GPU knows were guessed: {', '.join(measured.guessed)}")
        if measured.host_reads:
            notes.append(f"{measured.host_reads} reads of values from the virtual device were answered with zeros")
        said = asked.report or (None if asked.plan is None else asked.plan.report)
        if said is not None:
            notes += _mismatch(said, made)
        return notes

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _mismatch(said: Report, made: Report) -> list[str]:
    """How an earlier prediction differs from the one for this loop, card and PyTorch."""
    before, now = said.to_dict(), made.to_dict()
    other = [f"{name} {before[name]} (here {now[name]})" for name in ("gpu", "stack") if before[name] != now[name]]
    notes = [f"the prediction was made for {', '.join(other)}"] if other else []
    if said.requested_peak != made.requested_peak:
        notes.append(
            f"for this loop, card and PyTorch {format_bytes(made.requested_peak.likely)} requested are predicted, not "
            f"{format_bytes(said.requested_peak.likely)}: pass all keywords that the prediction was made with"
        )
    return notes


def _largest(asked: Subject, target: Mapping[str, Any], bracket: bool) -> int:
    """The predicted largest batch, which is what `bracket` is about."""
    if not bracket:
        raise InputError("a batch size is needed", "pass batch=, or bracket= for the predicted largest one")
    from gpumem.api import largest

    return largest(asked.module, asked.input, **{**asked.loop, **target})[0]


def _context_bytes(context: float | str) -> int:
    # Zero asks for what PyTorch alone takes.
    return 0 if context == 0 or context == "0" else parse_bytes(context, "context")


def _own_alloc_conf() -> str:
    return os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""


def _version() -> str:
    try:
        return importlib.metadata.version("gpumem")
    except importlib.metadata.PackageNotFoundError:
        return "source"


__all__ = ["DEFAULT_TIMEOUT_S", "STEPS", "Session"]
