"""The traces of a sweep: which are needed, and which one answers for a row."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpumem._core import ModelSpec, RegionSpace, find_gpu
from gpumem.sweeping.cache import Cache
from gpumem.sweeping.execute import Executor, OnTraced, traced
from gpumem.sweeping.grid import Grid
from gpumem.sweeping.job import Job, Traced
from gpumem.sweeping.models import Model


class Key(NamedTuple):
    """Which trace.

    Attributes:
        model: Name of the model.
        loop: Number of the combination of loop axes.
        planned: Whether with its checkpoint variants.
        gpu: Card whose kernels were chosen.
        batch: The only batch size, or None for all.
    """

    model: str
    loop: int
    planned: bool
    gpu: str | None
    batch: int | None


@dataclass(frozen=True)
class Loaded:
    """A trace, ready for questions; `spec`, or `space`, or an error."""

    spec: ModelSpec | None = None
    space: RegionSpace | None = None
    all_regions: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    is_batch_dependent: bool = False
    depends_on_capability: bool = False


def load(done: Traced) -> Loaded:
    """Read what an executor or the cache gave back."""
    if done.error is not None:
        return Loaded(error="\n  hint: ".join(filter(None, done.error)), is_batch_dependent=done.is_batch_dependent)
    spec = None if done.spec is None else ModelSpec.from_json(done.spec)
    space = None if done.space is None else RegionSpace.from_json(done.space)
    kept = spec if spec is not None or space is None else space.splice([0] * len(space.paths))
    return described(kept, Loaded(spec=spec, space=space, all_regions=done.all_regions, notes=done.notes))


def described(kept: ModelSpec | None, loaded: Loaded) -> Loaded:
    """With what the loop without checkpoints says about itself."""
    about = {} if kept is None else json.loads(kept.about_json())
    reads = [f"a value read by the program was taken as zero: {site}" for site in about.get("host_reads", ())]
    return Loaded(
        spec=loaded.spec,
        space=loaded.space,
        all_regions=loaded.all_regions,
        notes=(*loaded.notes, *about.get("assumptions", ()), *reads),
        depends_on_capability=bool(about.get("depends_on_capability")),
    )


class Traces:
    """All traces that the rows of a grid need.

    Args:
        models: By name.
        grid: The axes.

    Attributes:
        expected: Traces that are known to be needed so far.
    """

    def __init__(self, models: Mapping[str, Model], grid: Grid) -> None:
        self.models = models
        self.grid = grid
        self.loops = [dict(zip(grid.loop, values, strict=True)) for values in itertools.product(*grid.loop.values())]
        # A card for each compute capability: kernels are chosen by that alone.
        self._cards: dict[tuple[int, int] | None, str | None] = {}
        for gpu in grid.target.get("gpu", (None,)):
            self._cards.setdefault(_capability(gpu), gpu)
        self._first = next(iter(self._cards.values()))
        self._loaded: dict[Key, Loaded] = {}
        self.expected = 0

    def trace(self, cache: Cache, executor: Executor | None, on_traced: OnTraced) -> None:
        """Trace, or find in the cache, what is needed: first one of each loop, then what that says is needed beside."""
        wanted = set(self._firsts())
        while wanted:
            self.expected += len(wanted)
            jobs = {key: self._job(key) for key in sorted(wanted, key=repr)}
            for key, done in traced(jobs, cache, executor, on_traced).items():
                self._loaded[key] = load(done)
            wanted = {key for known in list(self._loaded) for key in self._beside(known)} - self._loaded.keys()

    def _firsts(self) -> Iterator[Key]:
        ways = {checkpoint != "none" for checkpoint in self.grid.checkpoints}
        for (name, model), loop in itertools.product(self.models.items(), range(len(self.loops))):
            if isinstance(model, ModelSpec):
                self._loaded[Key(name, loop, False, self._first, None)] = described(model, Loaded(spec=model))
                continue
            yield from (Key(name, loop, planned, self._first, None) for planned in ways)

    def _beside(self, known: Key) -> Iterator[Key]:
        found = self._loaded[known]
        if isinstance(self.models[known.model], ModelSpec):
            return
        if found.is_batch_dependent and known.batch is None:
            yield from (known._replace(batch=batch) for batch in self.grid.batches)
        if found.depends_on_capability and known.gpu == self._first:
            yield from (known._replace(gpu=gpu) for gpu in self._cards.values())

    def _job(self, key: Key) -> Job:
        loop = {**self.loops[key.loop]}
        if key.gpu is not None:
            loop["gpu"] = key.gpu
        return Job(model=self.models[key.model], loop=loop, batch=key.batch, planned=key.planned)

    def find(self, model: str, loop: int, planned: bool, gpu: str | None, batch: int) -> tuple[Key, Loaded]:
        """The trace that answers for a row."""
        key = Key(model, loop, planned, self._first, None)
        if self._loaded[key].is_batch_dependent:
            key = key._replace(batch=batch)
        if self._loaded[key].depends_on_capability and not isinstance(self.models[model], ModelSpec):
            key = key._replace(gpu=self._cards[_capability(gpu)])
        return key, self._loaded[key]

    def notes(self) -> dict[str, list[str]]:
        """What was assumed, by model."""
        said: dict[str, dict[str, None]] = {name: {} for name in self.models}
        for key in sorted(self._loaded, key=repr):
            said[key.model] |= dict.fromkeys(self._loaded[key].notes)
        return {name: list(notes) for name, notes in said.items()}


def _capability(gpu: str | None) -> tuple[int, int] | None:
    return None if gpu is None else find_gpu(gpu).capability
