"""One loop to plan for: its regions, the variants that could be traced, and the plans over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from gpumem._core import ModelSpec, RegionSpace
from gpumem.checkpointing import applied_regions, called_one_by_one, candidate_regions, candidate_segments
from gpumem.checkpointing.options import CHECKPOINT
from gpumem.checkpointing.places import check_unwrapped
from gpumem.checkpointing.selective import selective_contexts_exist
from gpumem.errors import GpumemError, RegionError, SpecError
from gpumem.extraction.region_space import OverwrittenError, RegionTracer
from gpumem.planning.variants import Variant, Variants, keeps_nothing, segments_variant, variants_of

# Sets of segments that are traced: each costs one more trace.
_SEGMENT_SETS = 3
_PS_PER_SECOND = 1e12


@dataclass(frozen=True)
class Choice:
    """A plan for one batch size that was joined, played and found to fit.

    Attributes:
        batch: Samples per micro-batch.
        regions: Region to its option.
        step_seconds: Least time of a micro-batch without recomputation.
        recompute_seconds: Least time of what is run again.
        recompute_bound_seconds: By the sum of the regions' bytes, no plan whose live bytes fit recomputes less.
    """

    batch: int
    regions: Mapping[str, str]
    step_seconds: float
    recompute_seconds: float
    recompute_bound_seconds: float

    @property
    def samples_per_second(self) -> float:
        """By the roofline."""
        return self.batch / max(self.step_seconds + self.recompute_seconds, 1e-12)


class PlannedLoop:
    """All checkpoint plans of one loop, at the batch sizes that were traced.

    Args:
        model: Any module; never modified.
        input: As for `gpumem.extract`.
        batches: Batch sizes to trace; several for plans of every batch size.
        loop: All keywords of `gpumem.extract` but `batches`.
        offload: Whether what regions save may wait in the host's memory: one more trace.
        parts: Whether regions can keep the outputs of some operations, and parts of regions, and several regions as one
            segment, can be checkpointed: more traces.

    Raises:
        RegionError: the model is wrapped (`torch.compile`), or has a plan applied.
        GpumemError: the loop without checkpoints cannot be traced.
    """

    def __init__(
        self,
        model: nn.Module,
        input: Any,
        batches: tuple[int, ...],
        loop: Mapping[str, Any],
        *,
        offload: bool = False,
        parts: bool = True,
    ) -> None:
        self.loop = dict(loop)
        self._tracer = RegionTracer(model, input, **self.loop)
        check_unwrapped(model)
        if applied := applied_regions(model):
            raise RegionError(
                f"{type(model).__name__} has a plan applied already ({len(applied)} regions, '{next(iter(applied))}')",
                "undo it first: applied.undo()",
            )
        candidates = candidate_regions(model)
        self._variants = variants_of(
            candidates.regions, parts=parts, selective=parts and selective_contexts_exist(), offload=offload
        )
        self.notes: list[str] = [candidates.reason] if candidates.reason else []
        self._space, self._kept = self._join(model, batches, segments=parts)
        if always_kept := [path for region, path in enumerate(self._variants.paths) if not self._can_change(region)]:
            self.notes.append(
                f"{len(always_kept)} blocks keep what autograd saves, since checkpointed they request other bytes in "
                f"their forward pass or cannot run (first: {always_kept[0]})"
            )

    @property
    def region_count(self) -> int:
        """Regions that can be checkpointed in some way."""
        return sum(self._can_change(region) for region in range(len(self._variants.paths)))

    def _can_change(self, region: int) -> bool:
        return any(self._space.is_allowed(region, variant) for variant in range(1, len(self._kept)))

    def _join(self, model: nn.Module, batches: tuple[int, ...], *, segments: bool) -> tuple[RegionSpace, list[Variant]]:
        """The space of the variants that can be traced and joined; why others cannot goes to `notes`."""
        paths = self._variants.paths
        base, *others = self._variants.variants
        traced = [self._tracer.variant(paths, base.applied, batches)]
        space, kept = RegionSpace.from_traces(list(paths), traced), [base]

        def consider(wanted: Variant) -> None:
            nonlocal space
            try:
                variant, traces = self._without_overwritten(wanted, batches)
                space = RegionSpace.from_traces(list(paths), [*traced, traces])
            except GpumemError as error:
                self.notes.append(f"not considered: {wanted.name} ({error.message.splitlines()[0]})")
                return
            traced.append(traces)
            kept.append(variant)

        for wanted in others if paths else ():
            if not keeps_nothing(wanted, traced[0][0]["ops"]):
                consider(wanted)
        if segments and [variant.name for variant in kept[1:2]] == [CHECKPOINT]:
            if apart := called_one_by_one(model, paths):
                self.notes.append(
                    f"not considered: several members of {', '.join(apart)} as one segment (as checkpoint_sequential "
                    "has them), since the model's own loop calls them one by one"
                )
            for number, chosen in enumerate(self._wanted_segments(model, space, batches[-1]), 1):
                consider(segments_variant(number, chosen))
        return space, kept

    def _wanted_segments(self, model: nn.Module, space: RegionSpace, batch: int) -> list[dict[str, tuple[int, int]]]:
        """Sets of segments that the best plans would have, as far as bytes and costs of single regions tell."""
        candidates = list(candidate_segments(model, self._variants.paths).items())
        if not candidates:
            return []
        rows = [row for _, row in candidates]
        sets = space.wanted_segments(rows, 1, _SEGMENT_SETS, batch, gpu=self.loop.get("gpu"))
        return [dict(candidates[number] for number in chosen) for chosen in sets]

    def _without_overwritten(self, variant: Variant, batches: tuple[int, ...]) -> tuple[Variant, tuple[Any, ...]]:
        """A variant and its traces; regions that write to their arguments keep what autograd saves."""
        try:
            rows = list(variant.segments.values())
            return variant, self._tracer.variant(self._variants.paths, variant.applied, batches, rows)
        except OverwrittenError as error:
            dropped = set().union(
                *(self._variants.regions_of(self._variants.paths.index(path), variant) for path in error.paths)
            )
            if not dropped or len(dropped) == len(variant.applied):
                raise
            self.notes.append(f"not considered: {variant.name} of {', '.join(error.paths)} (writes to its argument)")
            applied = {name: option for name, option in variant.applied.items() if name not in dropped}
            segments = {name: row for name, row in variant.segments.items() if name not in dropped}
            return self._without_overwritten(replace(variant, applied=applied, segments=segments), batches)

    @property
    def space(self) -> RegionSpace:
        """All plans, for the core and for JSON."""
        return self._space

    @property
    def places(self) -> int:
        """Regions, also those that cannot be checkpointed."""
        return len(self._variants.paths)

    @property
    def variant_names(self) -> tuple[str, ...]:
        """The ways in which a region can run; the first keeps everything."""
        return tuple(variant.name for variant in self._kept)

    def is_allowed(self, region: int, number: int) -> bool:
        """Whether a region can run as in this variant."""
        return self._space.is_allowed(region, number)

    def joined(self, choice: Sequence[int]) -> tuple[ModelSpec, dict[str, str]]:
        """The loop in which region `i` runs as in variant `choice[i]`, and its regions; see `possible`."""
        allowed = self.possible(choice)
        regions: dict[str, str] = {}
        for region, number in enumerate(allowed):
            regions |= self._variants.regions_of(region, self._kept[number])
        return self._space.splice(allowed), regions

    def segment(self, region: int, number: int) -> range:
        """The regions that run as one with `region` in a variant, itself among them."""
        return self._kept[number].segment(region)

    def possible(self, choice: Sequence[int]) -> list[int]:
        """The choice with the first variant wherever a region cannot run as chosen, by itself or with its segment."""
        allowed = [number if self.is_allowed(region, number) else 0 for region, number in enumerate(choice)]
        whole = (
            all(allowed[other] == number for other in self.segment(region, number))
            for region, number in enumerate(allowed)
        )
        return [number if is_whole else 0 for number, is_whole in zip(allowed, list(whole), strict=True)]

    def kept(self) -> ModelSpec:
        """The loop in which every region keeps what autograd saves."""
        return self._space.splice([0] * self.places)

    def cheapest(self, batch: int, target: Mapping[str, Any], plays: int | None = None) -> Choice | None:
        """The plan with the least recomputation that fits, or None.

        At the limit the allocator gives its cache back to the driver and tries again, so a plan may fit a budget and
        not a larger one. What is found is never slower than what is found by counting only plans that reserve no more
        than the budget, and that never gets slower with more budget.

        Args:
            batch: Samples per micro-batch.
            target: Keywords of `ModelSpec.estimate`: `gpu`, `budget`, `stack`, `context`, `alloc_conf`.
            plays: So many cheaper plans are tried in the order of their costs, beyond the usual few; when that is all
                of them, the answer is that of exhaustive search.
        """
        found = self._space.cheapest_plan(batch, plays=plays, **target)
        if found is None:
            return None
        choice, step_ps, recompute_ps, bound_ps, _ = found
        _, regions = self.joined(choice)
        seconds = [self._seconds(ps) for ps in (step_ps, recompute_ps, bound_ps)]
        return Choice(batch, regions, *seconds)

    def max_batch(self, target: Mapping[str, Any]) -> int:
        """The largest batch for which some plan fits.

        Raises:
            DoesNotFitError: not even one sample fits.
        """
        return self._space.max_batch(**target)

    def max_batch_without(self, target: Mapping[str, Any]) -> int:
        """The largest batch without checkpoints, 0 when not even one sample fits."""
        spec = self.kept()
        return spec.max_batch(**target) if spec.fits(1, **target) else 0

    def smallest_bytes(self, batch: int, target: Mapping[str, Any]) -> int:
        """Device bytes of the plan with the least peak, upper end."""
        return self._space.smallest_bytes(batch, **target)

    def cost(self, choice: Sequence[int], batch: int, target: Mapping[str, Any]) -> float:
        """Least seconds of recomputation of a micro-batch when region `i` runs as in variant `choice[i]`."""
        return self._seconds(self._space.recompute_ps(list(choice), batch, gpu=target.get("gpu")))

    def cost_of(self, variant: Variant, batch: int, target: Mapping[str, Any]) -> float:
        """The same for a way that is in no plan of the space: it is traced, at a batch size that was traced.

        Raises:
            GpumemError: it does not run.
        """
        paths = self._variants.paths
        ways = [(variant.applied, list(variant.segments.values())), ({}, [])]
        traces = [self._tracer.variant(paths, applied, (batch,), rows) for applied, rows in reversed(ways)]
        space = RegionSpace.from_traces(list(paths), traces)
        return self._seconds(space.recompute_ps([1] * len(paths), batch, gpu=target.get("gpu")))

    def _seconds(self, ps: int) -> float:
        """Of one micro-batch; what was traced is a whole step with its share of the optimizer."""
        return ps / _PS_PER_SECOND / int(self.loop["accumulate"])

    def traced(self, choice: Choice) -> ModelSpec:
        """The loop with this plan applied, traced as it runs.

        Raises:
            SpecError: the plan does not run.
        """
        return self.traced_regions(choice.regions, choice.batch)

    def traced_regions(self, regions: Mapping[str, str], batch: int) -> ModelSpec:
        """The same for any regions."""
        try:
            return self._tracer.spec(regions, batch)
        except GpumemError as error:
            raise SpecError(f"the plan does not run: {error.message}", error.hint) from error


__all__ = ["Choice", "PlannedLoop", "Variants"]
