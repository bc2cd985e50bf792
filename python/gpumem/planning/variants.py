"""The ways of checkpointing that are traced: each done by every region that can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpumem.checkpointing.candidates import Region
from gpumem.checkpointing.options import CHECKPOINT, OFFLOAD, SAVED_OPS, is_selective

# Parts (attention, feed-forward) are offered where at least this share of the regions has one of that name.
_SHARE_WITH_PART = 0.5
# Each way costs one more trace.
_PARTS_MAX = 3


@dataclass(frozen=True)
class Variant:
    """One way of checkpointing.

    Attributes:
        name: `keep`, an option (whole regions), or the parts that are checkpointed, such as `mlp`.
        applied: Region, part of each region, or segment of several regions to its option.
        segments: Of each segment in `applied`, the number of its first region and how many it covers, in order.
    """

    name: str
    applied: Mapping[str, str] = field(default_factory=dict)
    segments: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def segment(self, region: int) -> range:
        """The regions that run as one with `region`, itself among them."""
        for first, count in self.segments.values():
            if first <= region < first + count:
                return range(first, first + count)
        return range(region, region + 1)


@dataclass(frozen=True)
class Variants:
    """Regions and the ways they can be run.

    Attributes:
        paths: Names of the regions.
        variants: The ways; the first keeps everything.
    """

    paths: tuple[str, ...]
    variants: tuple[Variant, ...]

    def regions_of(self, region: int, variant: Variant) -> dict[str, str]:
        """What `apply_regions` is to do with one region, or with the segment that it is in."""
        path = self.paths[region]
        if variant.segments:
            row = (variant.segment(region)[0], len(variant.segment(region)))
            return {name: variant.applied[name] for name, found in variant.segments.items() if found == row}
        return {name: option for name, option in variant.applied.items() if name == path or name.startswith(f"{path}.")}


def variants_of(
    regions: Sequence[Region], *, parts: bool = True, selective: bool = False, offload: bool = False
) -> Variants:
    """Keep, whole regions, and what else is asked for.

    Args:
        regions: The regions.
        parts: Whether to offer parts that most regions have.
        selective: Whether to offer regions that keep the outputs of some operations, where nothing writes in place.
        offload: Whether to offer regions whose saved tensors wait on the host.
    """
    found = [Variant("keep"), Variant(CHECKPOINT, {region.name: CHECKPOINT for region in regions})]
    out_of_place = [region.name for region in regions if not region.in_place]
    if selective and out_of_place:
        found += [Variant(option, dict.fromkeys(out_of_place, option)) for option in SAVED_OPS]
    for part in _common_parts(regions) if parts else ():
        names = {f"{region.name}.{part}" for region in regions}
        applied = {p.name: CHECKPOINT for region in regions for p in region.parts if p.name in names}
        found.append(Variant(part, applied))
    if offload:
        found.append(Variant(OFFLOAD, {region.name: OFFLOAD for region in regions}))
    return Variants(tuple(region.name for region in regions), tuple(found))


def keeps_nothing(variant: Variant, ops: Collection[str]) -> bool:
    """Whether a loop of these operations has none whose output the variant is to keep.

    Args:
        variant: Any variant; one that is not selective keeps what it keeps.
        ops: Operations of the loop as a trace names them, such as `aten.mm.default`.
    """
    kept = set().union(*(SAVED_OPS[option] for option in variant.applied.values() if is_selective(option)))
    return bool(kept) and not kept & {"::".join(op.split(".")[:2]) for op in ops}


def _common_parts(regions: Sequence[Region]) -> list[str]:
    counts = Counter(part.name.removeprefix(f"{region.name}.") for region in regions for part in region.parts)
    least = max(2, _SHARE_WITH_PART * len(regions))
    return [name for name, count in counts.most_common(_PARTS_MAX) if count >= least]


def segments_variant(number: int, segments: Mapping[str, tuple[int, int]]) -> Variant:
    """The way in which these segments, of which none overlap, are checkpointed and all other regions keep."""
    ordered = dict(sorted(segments.items(), key=lambda item: item[1]))
    return Variant(f"segments {number}", dict.fromkeys(ordered, CHECKPOINT), ordered)
