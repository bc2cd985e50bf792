"""One loop, traced at any batch size and under any checkpoint plan, and assembled into specs.

`extract`, the planner and the validator all trace through this, so that they cannot differ.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from gpumem._core import ModelSpec
from gpumem.errors import ExtractionError, GpumemError, InputError
from gpumem.extraction.criterion import ChosenCriterion, choose_criterion
from gpumem.extraction.criterion_target import sentence, target_for
from gpumem.extraction.host_draws import HIGHEST, LOWEST, requested_peak_bytes
from gpumem.extraction.host_reads import described
from gpumem.extraction.inputs import describe
from gpumem.extraction.question import Question
from gpumem.extraction.recorder import Recorder
from gpumem.extraction.regions import RegionRecorder
from gpumem.extraction.trace import Tracer
from gpumem.loop import PURE_DTYPES, Criterion


class LoopTracer:
    """Traces the loop of a question.

    Args:
        question: The loop.
        caches: Whether a transformers model keeps its key-value caches; a plan switches them off.

    Raises:
        GpumemError: the module cannot be copied without its weights.
    """

    def __init__(self, question: Question, *, caches: bool = True) -> None:
        self.question = question
        with self._explained():
            self._tracer = Tracer(
                question.model,
                question.inputs,
                question.config,
                question.target,
                question.make_optimizer,
                question.step,
                allow_host_reads=question.allow_host_reads,
                caches=caches,
            )
        self._chosen: ChosenCriterion | None = None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except GpumemError:
            raise
        except Exception as error:
            raise ExtractionError(
                f"{type(self.question.model).__name__} could not be traced with input "
                f"{describe(self.question.inputs)}: {type(error).__name__}: {error}",
                "the exception above is the cause",
            ) from error

    def criterion(self, batch: int) -> ChosenCriterion:
        """The loss and its target; where none was given, it is chosen once, at this batch size."""
        if self._chosen is None:
            with self._explained():
                self._chosen = _criterion(self.question, self._tracer, batch)
        return self._chosen

    def recorders(
        self, batches: Sequence[int], regions: Mapping[str, str] | None = None, draw: float | None = None
    ) -> list[Recorder]:
        """Trace the loop at each batch size.

        Args:
            batches: Batch sizes.
            regions: Checkpointed regions and their options, or None.
            draw: Answer to single random numbers drawn on the host. None takes, where layers are dropped by chance, the
                course of no layer or of all, whichever is larger at the first batch size.
        """
        chosen = self.criterion(batches[0])

        def run(batch: int, draw: float) -> Recorder:
            return self._tracer.run(batch, chosen.function, chosen.target, draw, regions)

        with self._explained():
            first = run(batches[0], HIGHEST if draw is None else draw)
            if draw is None and first.draws:
                # Without its layers a model may have nothing to train.
                with contextlib.suppress(GpumemError):
                    first = max(first, run(batches[0], LOWEST), key=requested_peak_bytes)
            return [first, *(run(batch, first.draw) for batch in batches[1:])]

    def region_recorders(
        self, paths: Sequence[str], regions: Mapping[str, str], batches: Sequence[int]
    ) -> list[RegionRecorder]:
        """The same with the modules at `paths` followed; nothing is dropped by chance."""
        chosen = self.criterion(batches[0])
        with self._explained():
            return [
                self._tracer.run_regions(batch, paths, regions, chosen.function, chosen.target) for batch in batches
            ]

    def spec(self, batches: Sequence[int], regions: Mapping[str, str] | None = None) -> ModelSpec:
        """Trace and assemble.

        Raises:
            GpumemError: as `gpumem.extract`.
        """
        return self.assemble(self.recorders(batches, regions), batches)

    def assemble(self, recorders: Sequence[Recorder], batches: Sequence[int]) -> ModelSpec:
        """The spec of these traces.

        Raises:
            BatchDependentError: they do not tell one story, or a size is no polynomial in the batch.
        """
        with self._explained():
            return ModelSpec.from_traces(self.structure(recorders[0]), traces(recorders, batches))

    def structure(self, first: Recorder) -> dict[str, Any]:
        """What does not change with the batch, for the core."""
        return {
            "about": json.dumps(self._about(first)),
            "ops": first.ops,
            "layers": list(zip(first.layers, self._tracer.layer_kinds, strict=True)),
            "origins": first.origins,
            "categories": list(first.categories.items()),
            "formulas": [(kind, op, layer, phase) for kind, _, op, layer, phase in first.formulas],
        }

    def _about(self, recorder: Recorder) -> dict[str, Any]:
        question, chosen = self.question, self._chosen
        assert chosen is not None
        assumptions = list(question.assumptions)
        if question.config.mode == "train" and question.criterion is None and question.step is None:
            assumptions.append(f"loss: {chosen.description}")
        if chosen.assumption:
            assumptions.append(chosen.assumption)
        kept = {str(p.dtype).removeprefix("torch.") for p in question.model.parameters() if p.is_floating_point()}
        if question.config.precision not in PURE_DTYPES and kept - {"float32"}:
            assumptions.append(f"parameters stay as the model has them: {', '.join(sorted(kept))}")
        assumptions += [note for note in recorder.notes if note not in assumptions]
        major, minor = question.target.capability
        return {
            "model": type(question.model).__name__,
            "input": describe(question.inputs),
            "mode": question.config.mode,
            "precision": question.config.precision,
            "optimizer": question.optimizer_text,
            "criterion": chosen.description,
            "torch": torch.__version__,
            "capability": f"{major}.{minor}",
            "depends_on_capability": recorder.depends_on_capability,
            "assumptions": assumptions,
            "unverified_ops": sorted(recorder.unverified),
            "host_reads": sorted({_host_read(op, recorder.layers[layer]) for op, layer in recorder.host_reads}),
        }


def _criterion(question: Question, tracer: Tracer, batch: int) -> ChosenCriterion:
    if question.config.mode == "infer":
        return ChosenCriterion(None, None, "none")
    if question.step is not None:
        return ChosenCriterion(None, question.criterion_target, "inside your step function")
    if question.criterion is not None:
        name = getattr(question.criterion, "__qualname__", type(question.criterion).__name__)
        if question.criterion_target is not None:
            return ChosenCriterion(question.criterion, question.criterion_target, name)
        return _with_target(question.criterion, name, tracer, batch, question.config.precision)
    output = tracer.probe(batch)
    chosen = choose_criterion(output, batch)
    if chosen is None:
        kind = f"a tensor of {output.dtype}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(
            f"no loss can be chosen: the model returns {kind}, in which there is no floating-point tensor",
            "pass criterion=lambda output, target: ... returning a scalar, or mode='infer'",
        )
    return chosen


def _with_target(criterion: Criterion, name: str, tracer: Tracer, batch: int, precision: str) -> ChosenCriterion:
    target = tracer.probe(batch, lambda output: target_for(criterion, output, batch, precision))
    return ChosenCriterion(criterion, target, name, sentence(target))


def _host_read(op: str, path: str) -> str:
    place = f"'{path}'" if path else "the model itself"
    return f"{described(op)} in {place}"


def traces(recorders: Sequence[Recorder], batches: Sequence[int]) -> list[tuple[Any, ...]]:
    """What changes with the batch, for the core."""
    return [
        (batch, rec.events, rec.sizes, [arguments for _, arguments, *_ in rec.formulas], rec.flops_by_layer())
        for batch, rec in zip(batches, recorders, strict=True)
    ]
