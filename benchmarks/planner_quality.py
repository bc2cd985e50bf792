"""Our plans beside other ways of choosing what to checkpoint, at the same budgets and by the same cost model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.planner_cases import GPU, Case, gpt2, image
from benchmarks.rotor import Rotor, Stage
from torch import nn

from gpumem.checkpointing import candidate_segments
from gpumem.errors import GpumemError
from gpumem.planning.loops import PlannedLoop
from gpumem.planning.variants import Variant

GIB = 1 << 30
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
CASES = (
    image("resnet50", 64, precision="fp32", optimizer="sgd"),
    image("vit_b_16", 64, precision="amp-bf16", optimizer="adamw"),
    image("swin_t", 64, precision="amp-bf16", optimizer="adamw"),
    image("mobilenet_v2", 64, precision="amp-bf16", optimizer="sgd"),
    gpt2(12),
)
# More than any rounding: a rival that costs less than ours by more is better.
_EQUAL = 1e-9

TEXT = """Recomputation in percent of the step; a budget's share is that of the way from the smallest that any plan of
ours needs to what keeping everything needs. `sums`: the least that any plan of ours can cost whose bytes,
summed over regions, stay within the budget (`-`: no sum does; a plan may hold less than its sum says); what
lies between is the allocator's fragmentation. `every block`: all checkpointed. `every k-th`: the best of
checkpointing every k-th block or all but every k-th, for every k and offset. `sequential`: the best of
`checkpoint_sequential` for every number of segments, on every `nn.Sequential` of blocks. `greedy`: most bytes
for each second first. All of these were judged by the exact allocator; `-`: none fits. `rotor`: the dynamic
program of Beaumont et al. over whole blocks, segments nested as deep as it likes, on the same sums and without
an allocator (1,500 slots of memory), so it stands beside `sums`; `rotor, played`: its plan applied, traced and
judged by the allocator (`-`: it does not fit, or cannot be applied without rewriting the model, where its
segments are not within one `nn.Sequential`). `worse`: one of those that were played beats ours. A segment of rotor's
costs what its blocks cost one by one, up to a sixth less than it does."""
HEAD = (
    "| model | budget | GiB | ours | sums | every block | every k-th | sequential | greedy | rotor | rotor, played | |"
)


class Judge:
    """Whether a plan fits a budget, by the exact allocator; remembers specs and costs."""

    def __init__(self, planned: PlannedLoop, model: nn.Module, batch: int) -> None:
        self.planned = planned
        self.batch = batch
        self.ways, self.tail_bytes = planned.space.chain_ways(batch, **GPU)
        self._names = planned.space.paths
        self._segments = {row: name for name, row in candidate_segments(model, self._names).items()}
        self._known: dict[tuple[int, ...], tuple[Any, float]] = {}
        self._traced: dict[tuple[str, ...], Any] = {}
        self._costs: dict[tuple[str, ...], float] = {}

    def look(self, choice: Sequence[int]) -> tuple[Any, float]:
        """Spec and seconds of recomputation."""
        allowed = tuple(self.planned.possible(choice))
        if allowed not in self._known:
            spec, _ = self.planned.joined(allowed)
            self._known[allowed] = spec, self.planned.cost(allowed, self.batch, GPU)
        return self._known[allowed]

    def fits(self, choice: Sequence[int], budget: int) -> bool:
        """Whether it gets through."""
        return self._gets_through(self.look(choice)[0], budget)

    def _gets_through(self, spec: Any, budget: int) -> bool:
        fits: bool = spec.fits(self.batch, **GPU, budget=budget)
        return fits

    def cheapest(self, choices: Iterable[Sequence[int]], budget: int) -> float | None:
        """Least seconds of those that fit."""
        best: float | None = None
        for choice in choices:
            cost = self.look(choice)[1]
            if (best is None or cost < best) and self.fits(choice, budget):
                best = cost
        return best

    def traced_fits(self, names: Iterable[str], budget: int) -> bool:
        """Whether these regions, traced as they run, fit."""
        key = tuple(names)
        if key not in self._traced:
            try:
                self._traced[key] = self.planned.traced_regions(dict.fromkeys(key, "checkpoint"), self.batch)
            except GpumemError:
                self._traced[key] = None
        return self._traced[key] is not None and self._gets_through(self._traced[key], budget)

    def segments_cost(self, plan: Mapping[str, Sequence[int]]) -> float:
        """Seconds of recomputation of a plan of segments, given the regions of each; infinite where it does not run."""
        key = tuple(plan)
        if key not in self._costs:
            # A run of one member is that region by itself.
            names = {name if len(inside) > 1 else self._names[inside[0]]: inside for name, inside in plan.items()}
            rows = {name: (inside[0], len(inside)) for name, inside in names.items() if len(inside) > 1}
            variant = Variant("sequential", dict.fromkeys(names, "checkpoint"), rows)
            try:
                self._costs[key] = self.planned.cost_of(variant, self.batch, GPU)
            except GpumemError:
                self._costs[key] = math.inf
        return self._costs[key]

    def name(self, first: int, last: int) -> str | None:
        """What checkpoints these places as one; None where nothing does."""
        regions = [ways[0][0] for ways in self.ways[first : last + 1]]
        if first == last:
            return self._names[regions[0]]
        return self._segments.get((regions[0], len(regions)))


def every_kth(places: int) -> Iterator[list[int]]:
    """Every k-th block checkpointed, and all but every k-th, for every k and offset."""
    for k in range(1, places + 1):
        for offset in range(k):
            marked = [int(place % k == offset) for place in range(places)]
            yield marked
            yield [1 - mark for mark in marked]


def greedy(judge: Judge, budget: int) -> float | None:
    """Of the options left, the one that saves most bytes for each second, until it fits."""
    planned, batch = judge.planned, judge.batch
    choice = [0] * planned.places
    peak = lambda one: judge.look(one)[0].estimate(batch, **GPU).requested_peak.high  # noqa: E731
    while not judge.fits(choice, budget):
        here, spent = peak(choice), judge.look(choice)[1]
        best, best_ratio = None, 0.0
        for region in range(planned.places):
            for number in range(1, len(planned.variant_names)):
                if choice[region] == number:
                    continue
                other = planned.possible([*choice[:region], number, *choice[region + 1 :]])
                ratio = (here - peak(other)) / max(judge.look(other)[1] - spent, 1e-9)
                if ratio > best_ratio:
                    best, best_ratio = other, ratio
        if best is None:
            return None
        choice = best
    return judge.look(choice)[1]


def sequential_plans(model: nn.Module, paths: Sequence[str]) -> Iterator[dict[str, list[int]]]:
    """`checkpoint_sequential` on every sequence of blocks, for every number of segments: names and regions of each."""
    holders = {path.rpartition(".")[0] for path in paths if isinstance(_parent(model, path), nn.Sequential)}
    longest = max((len(model.get_submodule(path)) for path in holders), default=0)
    for segments in range(2, longest + 1):
        plan: dict[str, list[int]] = {}
        for path in sorted(holders):
            members = list(model.get_submodule(path)._modules)
            count = min(segments, len(members))
            size = len(members) // count
            for start in range(0, size * (count - 1), size):
                names = [f"{path}.{member}" for member in members[start : start + size]]
                inside = [
                    region
                    for region, known in enumerate(paths)
                    if any(known == name or known.startswith(f"{name}.") for name in names)
                ]
                plan[f"{path}[{start}:{start + size}]"] = inside
        yield plan


def _parent(model: nn.Module, path: str) -> nn.Module | None:
    return None if path.endswith("]") else model.get_submodule(path.rpartition(".")[0])


def sequential(judge: Judge, model: nn.Module, budget: int) -> float | None:
    """Least seconds of `checkpoint_sequential` plans that fit."""
    best: float | None = None
    for plan in sequential_plans(model, judge.planned.space.paths):
        cost = judge.segments_cost(plan)
        if (best is None or cost < best) and judge.traced_fits(plan, budget):
            best = cost
    return best


def rotor_of(judge: Judge, most_bytes: int) -> Rotor:
    """Blocks as the stages of rotor: variant 0 saves all, variant 1 the input; what cannot be checkpointed is dear."""
    stages = []
    for ways in judge.ways:
        by_variant = {variant: way for _, variant, count, *way in ways if count == 1}
        left, needs, _ = by_variant[0]
        output, _, again = by_variant.get(1, (left, needs, 1 << 62))
        stages.append(Stage(left, output, needs, again / 1e12))
    return Rotor(stages, judge.tail_bytes, most_bytes)


def rows(case: Case) -> Iterator[str]:
    """Rows of one model's table."""
    planned, model = case.planned(), case.make()
    judge = Judge(planned, model, case.batch)
    kept = planned.kept().estimate(case.batch, **GPU)
    keep, context = kept.device_peak.high, kept.device_peak.high - kept.reserved_peak.high
    small = planned.smallest_bytes(case.batch, GPU)
    rotor = rotor_of(judge, keep)
    for share in SHARES:
        budget = int(small + share * (keep - small))
        ours = planned.cheapest(case.batch, {**GPU, "budget": budget})
        assert ours is not None
        played = [
            judge.cheapest([[1] * planned.places], budget),
            judge.cheapest(every_kth(planned.places), budget),
            sequential(judge, model, budget),
            greedy(judge, budget),
        ]
        by_rotor = rotor.least(budget - context)
        names = None if by_rotor is None else [judge.name(*row) for row in rotor.segments(budget - context)]
        applied = names is not None and None not in names and judge.traced_fits(filter(None, names), budget)
        rotor_played = by_rotor if applied else None
        step = ours.step_seconds
        percent = lambda cost, step=step: "-" if cost is None else f"{100 * cost / step:.2f}"  # noqa: E731
        others = [cost for cost in (*played, rotor_played) if cost is not None]
        worse = any(cost < ours.recompute_seconds * (1 - _EQUAL) for cost in others)
        costs = (ours.recompute_seconds, ours.recompute_bound_seconds, *played, by_rotor, rotor_played)
        cells = " | ".join(map(percent, costs))
        yield f"| {case.name} | {share:.0%} | {budget / GIB:.2f} | {cells} | {'**worse**' if worse else ''} |"
