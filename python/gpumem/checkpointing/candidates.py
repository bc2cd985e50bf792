"""Which modules of a model are worth being checkpoint regions, from its structure alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

from gpumem.checkpointing.places import has_forward, is_plain_sequential

# Below this many weights (matrices and kernels) a module keeps little more than its own input.
_WEIGHTS_OF_A_BLOCK = 2


@dataclass(frozen=True)
class Region:
    """A module, or a run of members of an `nn.Sequential`, that can be checkpointed.

    Attributes:
        name: What `apply_regions` takes.
        kind: Class name, for a run the class of the container.
        alike: Equal for regions of the same structure (classes, and shapes and dtypes of parameters).
        parts: Regions inside it, a finer choice: attention and feed-forward of a transformer layer.
        in_place: Whether a module in it writes its result over its argument (`inplace=True`).
    """

    name: str
    kind: str
    alike: int
    parts: tuple[Region, ...] = ()
    in_place: bool = False


@dataclass(frozen=True)
class Candidates:
    """Disjoint regions in the order of definition.

    Attributes:
        regions: The regions.
        reason: How they were chosen where the model has no repeated blocks, or why there are none; else empty.
    """

    regions: tuple[Region, ...]
    reason: str = ""

    def __iter__(self) -> Iterator[Region]:
        return iter(self.regions)

    def __len__(self) -> int:
        return len(self.regions)


def candidate_regions(model: nn.Module) -> Candidates:
    """Find the modules worth checkpointing: the repeated blocks of `model`, whole.

    Blocks are members of `nn.ModuleList`, `nn.ModuleDict` and `nn.Sequential` of which a class comes more than once,
    the outermost that are no mere stages of smaller blocks: transformer layers, bottlenecks, dense layers. What stands
    between them in the same container (patch merging, transitions) is taken along. Where no container holds blocks,
    attributes of one class are taken (`down1`, `down2`, ...); without those, long sequences of layers are cut after
    each pooling layer; last, the parts that the model itself consists of.

    Args:
        model: Any module; nothing is run.

    Returns:
        The regions, and how they were found if not as blocks.
    """
    search = _Search()
    found = list(search.blocks("", model))
    reason = ""
    if not found:
        found = list(_runs("", model))
        reason = "no repeated blocks: long sequences were cut after each pooling layer"
    if not found:
        found = [(path, child) for path, child in _called("", model) if _is_worth_running_again(child)]
        reason = "no repeated blocks: the direct parts of the model"
    if not found:
        return Candidates((), f"{type(model).__name__} has no repeated blocks and no parts made of several layers")
    alike = _Alike()
    return Candidates(tuple(_region(name, module, alike) for name, module in found), reason)


class _Search:
    """Walks down to the blocks; whether a module has blocks in it is asked often and remembered."""

    def __init__(self) -> None:
        self._has_blocks: dict[nn.Module, bool] = {}
        self._seen: set[nn.Module] = set()

    def blocks(self, path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Blocks below `module`, which is none itself; a module that hangs in two places is named once."""
        if _is_container(module):
            yield from self._of_family(list(_flattened(path, module)))
            return
        children = [(_join(path, name), child) for name, child in module.named_children()]
        # Where blocks are, others of that size beside them (a middle, a head) are part of the same chain.
        chain = _repeated([child for _, child in children if not _is_container(child)])
        chain |= {type(child) for _, child in children if self.has_blocks(child)}
        for child_path, child in children:
            if chain and _is_block(child) and not self.has_blocks(child) and _is_sequence_or_module(child):
                yield from self._once(child_path, child)
            else:
                yield from self.blocks(child_path, child)

    def has_blocks(self, module: nn.Module) -> bool:
        """Whether a container somewhere in `module` holds blocks."""
        if module not in self._has_blocks:
            members = [member for _, member in _flattened("", module)] if _is_container(module) else []
            inner = members or list(module.children())
            self._has_blocks[module] = bool(_repeated(members)) or any(self.has_blocks(child) for child in inner)
        return self._has_blocks[module]

    def _of_family(self, members: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
        chain = bool(_repeated([member for _, member in members]))
        for path, member in members:
            if self.has_blocks(member):
                yield from self.blocks(path, member)
            elif chain:
                yield from self._once(path, member)
            else:
                yield from () if _is_container(member) else self.blocks(path, member)

    def _once(self, path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        if module not in self._seen and has_forward(module) and _has_parameters(module):
            self._seen.add(module)
            yield path, module


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential))


def _is_small(module: nn.Module) -> bool:
    """Whether it has at most the layer that it is: no modules inside, or no weights (a norm with its activation)."""
    return not module._modules or not _weights(module)


def _is_sequence_or_module(module: nn.Module) -> bool:
    """Whether it is no container, or one of layers only."""
    return not _is_container(module) or all(_is_small(child) for child in module.children())


def _is_block(module: nn.Module) -> bool:
    return not _is_small(module) and has_forward(module) and _weights(module) >= _WEIGHTS_OF_A_BLOCK


def _flattened(path: str, container: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Members that consist of modules themselves, those of inner containers in place of these.

    A sequence of layers only is a member itself.
    """
    for name, member in container.named_children():
        inner = _join(path, name)
        if _is_small(member):
            continue
        if _is_sequence_or_module(member):
            yield inner, member
        else:
            yield from _flattened(inner, member)


def _weights(module: nn.Module) -> int:
    return sum(parameter.dim() > 1 for parameter in module.parameters())


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _repeated(modules: list[nn.Module]) -> set[type[nn.Module]]:
    """Classes that come more than once among `modules` as blocks."""
    counts = Counter(type(module) for module in modules if _is_block(module))
    return {kind for kind, count in counts.items() if count > 1}


def _is_worth_running_again(module: nn.Module) -> bool:
    """Several layers, or one that keeps much more than its input."""
    return isinstance(module, nn.RNNBase) or (not _is_small(module) and _has_parameters(module))


def _called(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Direct children that are called, seen through containers that are not."""
    for name, child in module.named_children():
        inner = _join(path, name)
        if has_forward(child):
            yield inner, child
        else:
            yield from _called(inner, child)


def _is_pooling(module: nn.Module) -> bool:
    return isinstance(module, (_MaxPoolNd, _AvgPoolNd, _AdaptiveMaxPoolNd, _AdaptiveAvgPoolNd))


def _runs(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Runs of members between pooling layers, in sequences that have such layers."""
    if not is_plain_sequential(module):
        for name, child in module.named_children():
            yield from _runs(_join(path, name), child)
        return
    assert isinstance(module, nn.Sequential)
    members = list(module)
    ends = [index + 1 for index, member in enumerate(members) if _is_pooling(member)]
    if not ends:
        return
    start = 0
    for end in [*ends, len(members)]:
        run = nn.ModuleList(members[start:end])
        if end - start > 1 and _has_parameters(run):
            yield f"{path}[{start}:{end}]", run
        start = end


class _Alike:
    """Numbers structures in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def number(self, module: nn.Module) -> int:
        key = (
            tuple((path, type(inner)) for path, inner in module.named_modules()),
            tuple((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in module.named_parameters()),
        )
        return self._numbers.setdefault(key, len(self._numbers))


def _region(name: str, module: nn.Module, alike: _Alike) -> Region:
    parts: tuple[Region, ...] = ()
    if not name.endswith("]"):
        inner = [(path, child) for path, child in _called(name, module) if _is_worth_running_again(child)]
        parts = tuple(Region(path, type(child).__name__, alike.number(child)) for path, child in inner)
    kind = "Sequential" if name.endswith("]") else type(module).__name__
    in_place = any(inner.__dict__.get("inplace") is True for inner in module.modules())
    return Region(name, kind, alike.number(module), parts, in_place)
