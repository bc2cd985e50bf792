"""A loop with checkpointed regions: traced under one plan, or in all variants from which plans are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from gpumem._core import ModelSpec
from gpumem.errors import BatchDependentError, GpumemError
from gpumem.extraction.loop_tracer import LoopTracer, traces
from gpumem.extraction.question import ask
from gpumem.extraction.regions import OUTSIDE, RegionRecorder


class OverwrittenError(GpumemError):
    """Regions that do not run in a variant: what the backward pass needs of them is overwritten.

    Attributes:
        paths: The regions; none where the overwritten tensor belongs to none.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        names = ", ".join(paths)
        super().__init__(f"what the backward pass needs is overwritten in place: {names or 'outside all regions'}")
        self.paths = tuple(paths)


class RegionTracer:
    """One loop, to be traced under different checkpoint plans.

    Args:
        model: As for `gpumem.extract`; never modified.
        input: As for `gpumem.extract`.
        options: All keywords of `gpumem.extract` but `batches`.

    Raises:
        GpumemError: as `gpumem.extract`.
    """

    def __init__(self, model: nn.Module, input: Any, **options: Any) -> None:
        self._tracer = LoopTracer(ask(model, input, **options), caches=False)

    def spec(self, regions: Mapping[str, str], batch: int) -> ModelSpec:
        """The loop at one batch size with a plan applied, traced as it runs.

        Args:
            regions: Name of each region to its option (`gpumem.checkpointing.apply_regions`).
            batch: Batch size.

        Raises:
            GpumemError: as `gpumem.extract`.
        """
        return self._tracer.spec((batch,), regions)

    def variant(
        self,
        paths: Sequence[str],
        applied: Mapping[str, str],
        batches: tuple[int, ...],
        segments: Sequence[tuple[int, int]] = (),
    ) -> tuple[Any, ...]:
        """One variant, for `RegionSpace.from_traces`.

        Args:
            paths: Regions, disjoint modules or runs of members.
            applied: Regions checkpointed in it; in the first variant none (every region keeps what autograd saves).
            batches: Batch sizes to trace; one size gives plans for that size only.
            segments: First region and number of regions of each segment in `applied`, in order.

        Raises:
            GpumemError: as `gpumem.extract`.
            BatchDependentError: what regions hold depends on the batch size.
            OverwrittenError: regions do not run like that.
        """
        recorders = self._tracer.region_recorders(paths, applied, batches)
        if overwritten := set().union(*(rec.overwritten for rec in recorders)):
            raise OverwrittenError([paths[owner - 1] for owner in sorted(overwritten) if owner != OUTSIDE])
        first = recorders[0]
        for batch, rec in zip(batches, recorders, strict=True):
            if rec.borders != first.borders or rec.touches != first.touches:
                raise BatchDependentError(
                    f"what the regions hold differs between batch {batches[0]} and {batch}", "plan for one batch size"
                )
        return (
            self._tracer.structure(first),
            traces(recorders, batches),
            first.borders,
            first.touches,
            [_calls(rec) for rec in recorders],
            list(segments),
        )


def _calls(rec: RegionRecorder) -> list[tuple[int, int, int, str]]:
    return [(cost.code, cost.flops, cost.moved_bytes, cost.unit) for cost in rec.costs]
