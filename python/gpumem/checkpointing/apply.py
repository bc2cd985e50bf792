"""Putting a checkpointing plan into a real module, and taking it out again.

A region's module gets a `forward` in its `__dict__` that runs the original one through `torch.utils.checkpoint`.
Nothing is wrapped or registered, so names in `state_dict`, `named_modules` and `named_parameters` stay, and hooks of
the region itself run once per call, outside of it. Hooks of modules inside a region run again when it does.

What happens:

- Only in training mode with gradients recorded; otherwise a call goes straight to the original forward.
- A module that is called several times is a region at each call; one that hangs in two places is one region.
- Running statistics of batch norm end up as without the plan, see `state`; random numbers are drawn again as they were.
- Transformers train without key-value caches meanwhile (`config.use_cache` is off until the plan is undone): a region
  would fill them twice. `generate` has its own setting and keeps its cache. A region that is given an empty cache all
  the same goes without it.
- Outputs and gradients are those of the model without the plan, bit for bit, with `checkpoint` and `save:` (against
  `use_cache=False` where there is such a cache). `reentrant` adds up gradients region by region: where a tensor is used
  in several regions, and under autocast, the sums may round differently.
- A deep copy or a pickle of the model has the plan applied too (unpickling needs gpumem); a `state_dict` knows nothing
  of it.

Order: apply before `torch.compile`, `fully_shard`/FSDP and `DistributedDataParallel`, which then see the regions.
`torch.nn.DataParallel` does not work with it: its replicas share the forward of the original. With DDP, `reentrant`
regions need `static_graph=True` when a module in them is used more than once per step; `checkpoint` and `save:` do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from gpumem.checkpointing.caches import switch_caches_off, switch_caches_on
from gpumem.checkpointing.forward import RegionForward, Segment
from gpumem.checkpointing.options import check_option, is_selective
from gpumem.checkpointing.places import Place, check_unwrapped, find_place
from gpumem.checkpointing.selective import selective_contexts_exist
from gpumem.errors import RegionError


@dataclass(frozen=True)
class Applied:
    """A plan that is in place; as a context manager it is undone at the end.

    Attributes:
        model: The model, the same object that was given.
        regions: The regions by name and their options.
    """

    model: nn.Module
    regions: Mapping[str, str]

    def undo(self) -> None:
        """See `undo_regions`."""
        undo_regions(self.model)

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(self, *error: object) -> None:
        self.undo()


def apply_regions(model: nn.Module, regions: Mapping[str, str], *, preserve_rng_state: bool = True) -> Applied:
    """Make modules of `model` checkpointed regions, in place.

    Args:
        model: Any module, not yet wrapped by `torch.compile`, DDP or FSDP.
        regions: Name of each region (module path, or `path[start:stop]` for a run of members of an `nn.Sequential`) to
            its option (`options.OPTIONS`). A region may lie inside another one.
        preserve_rng_state: As in `torch.utils.checkpoint`: draw random numbers again as in the forward pass. False
            saves the time and is right only without dropout.

    Returns:
        What was applied, with `undo()`.

    Raises:
        RegionError: a name means no module that is called, two names mean the same or overlapping members, a plan is
            applied already, or this torch has no selective checkpointing. The model is untouched then.
        UnknownNameError: an option that does not exist.
    """
    check_unwrapped(model)
    _refuse_second_plan(model)
    places = [(find_place(model, name), check_option(name, option)) for name, option in regions.items()]
    if any(is_selective(option) for _, option in places) and not selective_contexts_exist():
        name = next(place.name for place, option in places if is_selective(option))
        raise RegionError(
            f"region '{name}' keeps the outputs of some operations, which this version of torch cannot do",
            "torch 2.5 or later has create_selective_checkpoint_contexts; with this one use 'checkpoint'",
        )
    forwards = [
        RegionForward(module, group[0][0].path, _whole(group), _segments(group), preserve_rng_state=preserve_rng_state)
        for module, group in _by_module(places).items()
    ]
    if forwards:
        forwards[0].configs_without_cache = switch_caches_off(model)
    # Nothing can fail from here on.
    for forward in forwards:
        forward.module.__dict__["forward"] = forward
    return Applied(model, MappingProxyType(dict(regions)))


def undo_regions(model: nn.Module) -> None:
    """Take every region out of `model` (or of a copy of a model with a plan): each `__dict__` is as it was.

    Without a plan it does nothing.

    Raises:
        RegionError: a region's forward was patched by someone else in the meantime. Nothing is undone then.
    """
    applied = _applied(model)
    for path, module in model.named_modules():
        patched: Any = module.__dict__.get("forward")
        if patched is not None and not isinstance(patched, RegionForward) and _wraps_region(patched):
            raise RegionError(
                f"the forward of '{path}' was patched after the plan was applied",
                "take the later patch off first: the plan's forward is underneath",
            )
    for forward in applied:
        switch_caches_on(forward.configs_without_cache)
        if forward.replaced is None:
            del forward.module.__dict__["forward"]
        else:
            forward.module.__dict__["forward"] = forward.replaced


def applied_regions(model: nn.Module) -> dict[str, str]:
    """The regions applied to `model` and their options, in the order of its modules; empty without a plan."""
    found = {}
    for path, module in model.named_modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, RegionForward):
            if forward.option is not None:
                found[path] = forward.option
            found |= {f"{path}[{part.start}:{part.stop}]": part.option for part in forward.segments}
    return found


def _applied(model: nn.Module) -> list[RegionForward]:
    forwards = (module.__dict__.get("forward") for module in model.modules())
    return [forward for forward in forwards if isinstance(forward, RegionForward)]


def _wraps_region(patched: Any) -> bool:
    """Whether a later patch says, as `functools.wraps` does, that a region's forward is underneath."""
    seen = 0
    while patched is not None and seen < 100:
        if isinstance(patched, RegionForward):
            return True
        patched = getattr(patched, "__wrapped__", None) or getattr(patched, "func", None)
        seen += 1
    return False


def _refuse_second_plan(model: nn.Module) -> None:
    before = applied_regions(model)
    if before:
        raise RegionError(
            f"{type(model).__name__} has {len(before)} regions applied already, the first is '{next(iter(before))}'",
            "undo them first: gpumem.checkpointing.apply.undo_regions(model)",
        )


def _by_module(places: list[tuple[Place, str]]) -> dict[nn.Module, list[tuple[Place, str]]]:
    groups: dict[nn.Module, list[tuple[Place, str]]] = {}
    for place, option in places:
        groups.setdefault(place.module, []).append((place, option))
    return groups


def _whole(group: list[tuple[Place, str]]) -> str | None:
    """The option of the module as a whole."""
    chosen = [(place, option) for place, option in group if place.members is None]
    if len({option for _, option in chosen}) > 1:
        names = " and ".join(f"'{place.name}'" for place, _ in chosen[:2])
        raise RegionError(f"{names} are the same module and were given different options")
    return chosen[0][1] if chosen else None


def _segments(group: list[tuple[Place, str]]) -> tuple[Segment, ...]:
    """The runs of members of one module, in order."""
    # Names that mean the same run (a module that hangs in two places) are one.
    segments = sorted(
        {Segment(*place.members, option) for place, option in group if place.members is not None},
        key=lambda segment: (segment.start, segment.stop, segment.option),
    )
    path = group[0][0].path
    for first, second in itertools.pairwise(segments):
        if second.start < first.stop:
            raise RegionError(
                f"the runs '{path}[{first.start}:{first.stop}]' and '{path}[{second.start}:{second.stop}]' overlap"
            )
    return tuple(segments)
