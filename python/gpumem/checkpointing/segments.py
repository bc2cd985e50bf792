"""Which regions in a row can be checkpointed as one, from the structure of a model alone.

Without touching the code that calls the blocks, only what one call runs can be one region: a module around several
regions, or members of an `nn.Sequential` in a row, as `torch.utils.checkpoint.checkpoint_sequential` takes them. Blocks
that a model's own loop calls one by one (an `nn.ModuleList`) stay regions by themselves: whatever stands between two
calls, or reads a block's output in the loop or by a hook, would not see it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from gpumem.checkpointing.places import has_forward, is_plain_sequential

# Longer runs of members are left out, unless they are all of them: of 100 blocks there would be 5,000.
_LONGEST = 16
_RUN = re.compile(r"(.*)\[(\d+):(\d+)\]")


def candidate_segments(model: nn.Module, regions: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Names that `apply_regions` takes and that cover several of `regions`.

    Args:
        model: The model.
        regions: Names of disjoint regions.

    Returns:
        Name to the number of the first region and how many there are. Of several that cover the same regions, the
        innermost.
    """
    found: dict[tuple[int, int], str] = {}
    for path, module in model.named_modules():
        if path in regions:
            continue
        inside = _inside(path, regions)
        if path and has_forward(module) and _is_row(inside):
            found[inside[0], len(inside)] = path
        if is_plain_sequential(module):
            members = [_of_member(path, member, regions) for member in module._modules]
            for (start, stop), row in _rows(path, members, regions):
                if stop - start < len(members) or not path:
                    found[row[0], len(row)] = f"{path}[{start}:{stop}]"
    return {name: row for row, name in sorted(found.items())}


def called_one_by_one(model: nn.Module, regions: Sequence[str]) -> list[str]:
    """Paths of the lists of which several members hold regions: no segment can cover two of them.

    Args:
        model: The model.
        regions: Names of disjoint regions.
    """

    def members(path: str, module: nn.Module) -> int:
        return sum(bool(_of_member(path, member, regions)) for member in module._modules)

    named = model.named_modules()
    return [path for path, module in named if isinstance(module, nn.ModuleList) and members(path, module) > 1]


def _inside(path: str, regions: Sequence[str]) -> list[int]:
    """Numbers of the regions below a module."""
    prefix = f"{path}." if path else ""
    below = (name.startswith((prefix, f"{path}[")) for name in regions)
    return [number for number, is_below in enumerate(below) if is_below]


def _of_member(path: str, member: str, regions: Sequence[str]) -> list[int]:
    name = f"{path}.{member}" if path else member
    return [regions.index(name)] if name in regions else _inside(name, regions)


def _is_row(numbers: Sequence[int]) -> bool:
    return len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))


def _rows(
    path: str, members: Sequence[Sequence[int]], regions: Sequence[str]
) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """Members in a row that consist of regions, and the numbers of these."""
    # A run of members that is a region is taken as a whole.
    pieces = [(at, at + 1, list(numbers)) for at, numbers in enumerate(members)]
    for number, name in enumerate(regions):
        run = _RUN.fullmatch(name)
        if run is not None and run[1] == path:
            start, stop = int(run[2]), int(run[3])
            pieces = [piece for piece in pieces if not start <= piece[0] < stop]
            pieces.append((start, stop, [number]))
    pieces.sort()
    for first, (start, _, _) in enumerate(pieces):
        row: list[int] = []
        for _, stop, numbers in pieces[first:]:
            row += numbers
            if not numbers or (len(row) > _LONGEST and stop - start < len(members)):
                break
            if _is_row(row):
                yield (start, stop), list(row)
