"""The ways of checkpointing that are traced: each done by every region that can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpumem.checkpointing.candidates import Region
from gpumem.checkpointing.options import CHECKPOINT

# Parts (attention, feed-forward) are offered where at least this share of the regions has one of that name.
_SHARE_WITH_PART = 0.5
# Each way costs one more trace.
_PARTS_MAX = 3


@dataclass(frozen=True)
class Variant:
    """One way of checkpointing.

    Attributes:
        name: `keep`, an option (whole regions), or the parts that are checkpointed, such as `mlp`.
        applied: Region or part of each region to its option.
    """

    name: str
    applied: Mapping[str, str] = field(default_factory=dict)


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
        """What `apply_regions` is to do with one region."""
        path = self.paths[region]
        return {name: option for name, option in variant.applied.items() if name == path or name.startswith(f"{path}.")}


def variants_of(regions: Sequence[Region], *, parts: bool = True) -> Variants:
    """Keep, whole regions, and (with `parts`) parts that most regions have."""
    found = [Variant("keep"), Variant(CHECKPOINT, {region.name: CHECKPOINT for region in regions})]
    for part in _common_parts(regions) if parts else ():
        names = {f"{region.name}.{part}" for region in regions}
        applied = {p.name: CHECKPOINT for region in regions for p in region.parts if p.name in names}
        found.append(Variant(part, applied))
    return Variants(tuple(region.name for region in regions), tuple(found))


def _common_parts(regions: Sequence[Region]) -> list[str]:
    counts = Counter(part.name.removeprefix(f"{region.name}.") for region in regions for part in region.parts)
    least = max(2, _SHARE_WITH_PART * len(regions))
    return [name for name, count in counts.most_common(_PARTS_MAX) if count >= least]
