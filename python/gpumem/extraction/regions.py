"""Records a trace by regions of the model, so that checkpoint plans can be put together from traces of the pure cases.

A plan lets each region (a module, called as a whole) keep what autograd saves or checkpoint some of it. One trace has
all regions keep, one has all of them checkpoint, and so on; the core (`rust/gpumem-core/src/regions`) cuts them at the
borders noted here and joins the pieces that a plan asks for. Pieces meet in storages that several of them hold. Which
piece lets go last depends on the plan, so it is not enough to see a storage die: every moment at which a piece is known
to hold one is noted as a touch.
"""

from __future__ import annotations

import bisect
import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpumem.extraction.recorder import PHASES, Handler, Recorder

OUTSIDE = 0
"""Owner of events outside all regions; region `i` is owner `i + 1`."""

_HALF_BYTES = 2
_RUN = re.compile(r"(.*)\[(\d+):(\d+)\]")
_FORWARD = PHASES.index("forward")

_current_node = torch._C._current_autograd_node
_sequence_nr = torch._C._autograd._get_sequence_nr


@dataclass(frozen=True)
class OpCost:
    """One kernel call of the last step.

    Attributes:
        code: As in `RegionRecorder.borders`: owner, and whether the autograd engine ran it (recomputation included).
        flops: Floating-point operations of matrix products, convolutions and attention.
        moved_bytes: Bytes of its tensor arguments and results.
        unit: Arithmetic unit: `fp32`, `tf32` or `half`; `host` for a transfer.
    """

    code: int
    flops: int
    moved_bytes: int
    unit: str


class _Saved:
    """A tensor that autograd saved; its end is the end of that hold, wherever the storage lives on."""

    __slots__ = ("_index", "_owner", "_rec", "_tensor", "_version")

    def __init__(self, rec: RegionRecorder, tensor: torch.Tensor, index: int, owner: int) -> None:
        self._rec = rec
        self._index = index
        self._owner = owner
        self._tensor = tensor
        self._version = tensor._version

    def unpacked(self) -> torch.Tensor:
        """The tensor; whether it is still what was saved is noted, since autograd looks only where there are no hooks.

        It is not where the first operation of a checkpointed region writes to the region's argument.
        """
        if self._tensor._version != self._version:
            self._rec.overwritten.add(self._owner)
        return self._tensor

    def __del__(self) -> None:
        self._rec.touch(self._index)


class _Arguments:
    """Lives as long as a checkpoint keeps the arguments of its function for recomputation."""

    __slots__ = ("_indices", "_rec")

    def __init__(self, rec: RegionRecorder, indices: list[int]) -> None:
        self._rec = rec
        self._indices = indices

    def __del__(self) -> None:
        for index in self._indices:
            self._rec.touch(index)


class RegionRecorder(Recorder):
    """A recorder that also notes whose events are whose.

    Attributes:
        borders: `(position, code)`: from `Recorder.events[position]` on, events are those of owner `code >> 1`; the low
            bit says whether the autograd engine runs them.
        touches: `(position, allocation, border)`: just before that event, the owner that the last of so many borders
            named holds the allocation.
        costs: Kernel calls of the last step.
        overwritten: Owners of whose saved tensors one was overwritten before the backward pass needed it.
    """

    def __init__(self, handlers: dict[Any, Handler], verified: frozenset[str], paths: Sequence[str]) -> None:
        super().__init__(handlers, verified)
        self.borders: list[tuple[int, int]] = []
        self.touches: list[tuple[int, int, int]] = []
        self.costs: list[OpCost] = []
        self.overwritten: set[int] = set()
        self._owners = _owners(paths)
        self._owner = OUTSIDE
        self._forward_owners: list[int] = []
        self._owner_of_node: tuple[list[int], list[int]] = ([], [])
        self._in_engine = False
        self._nodes_before_engine = 0
        self._entered_at = 0
        self._used: set[int] = set()
        self._flops = 0
        self._outer_flops: list[int] = []
        self._is_view: dict[Any, bool] = {}

    # ------------------------------------------------------------------ whose turn it is

    def _pass_to(self, owner: int, in_engine: bool) -> None:
        if owner != self._owner or in_engine != self._in_engine:
            self._owner = owner
            self._in_engine = in_engine
            self.borders.append((len(self.events), owner << 1 | in_engine))

    def _note_owner(self) -> None:
        numbers, owners = self._owner_of_node
        number = _sequence_nr()
        if numbers and numbers[-1] >= number:
            owners[-1] = self._owner
        else:
            numbers.append(number)
            owners.append(self._owner)

    def enter_layer(self, layer: int) -> None:
        """Attribute what follows to `layer`, and to its region if it is one."""
        super().enter_layer(layer)
        self._forward_owners.append(self._owner)
        # What a checkpoint recomputes belongs to the node that asked for it.
        if self._owner == OUTSIDE and _current_node() is None:
            owner = self._owners.get(self.layers[layer], OUTSIDE)
            if owner != OUTSIDE:
                self._entered_at = len(self.sizes)
                self._used.clear()
                self._pass_to(owner, False)
                self._note_owner()

    def leave_layer(self) -> None:
        """Undo the last `enter_layer`; the caller held what a region was given until here."""
        super().leave_layer()
        owner = self._forward_owners.pop()
        if owner == OUTSIDE and self._owner != OUTSIDE and _current_node() is None:
            self._pass_to(OUTSIDE, False)
            self._note_owner()
            for index in sorted(self._used):
                if index < self._entered_at:
                    self.touch(index)

    def mark(self, phase: str) -> None:
        """Note the border of a phase; none lies inside a region."""
        self._pass_to(OUTSIDE, False)
        if phase == "forward" and self.phase in ("setup", "end", "optimizer"):
            self.costs.clear()
        super().mark(phase)

    def _locate(self) -> None:
        """Find out whose op is being dispatched."""
        node = _current_node()
        if node is None:
            if self._in_engine:
                self._pass_to(OUTSIDE, False)
            return
        if not self._in_engine:
            self._nodes_before_engine = _sequence_nr()
            self._pass_to(OUTSIDE, True)
        number = node._sequence_nr()
        # Later numbers are AccumulateGrad's and those of nodes that a checkpoint made: the asking node's owner stays.
        if number < self._nodes_before_engine:
            numbers, owners = self._owner_of_node
            at = bisect.bisect_right(numbers, number) - 1
            self._pass_to(owners[at] if at >= 0 else OUTSIDE, True)

    # ------------------------------------------------------------------ who holds what

    def touch(self, index: int) -> None:
        """The allocation is held until here."""
        if self.recording:
            self.touches.append((len(self.events), index, len(self.borders)))

    def saved(self, tensor: torch.Tensor) -> Any:
        """What autograd keeps in place of a tensor that it saves."""
        with torch._C.DisableTorchFunction():
            death = self._live.get(tensor.untyped_storage()._cdata) if tensor.is_meta else None
        return tensor if death is None else _Saved(self, tensor, death.index, self._owner)

    def arguments_held(self, arguments: Sequence[Any]) -> object:
        """What a checkpoint is to keep beside these arguments, so that their release is noticed."""
        with torch._C.DisableTorchFunction():
            deaths = [self._live.get(tensor.untyped_storage()._cdata) for tensor in _tensors(list(arguments))]
        return _Arguments(self, [death.index for death in deaths if death is not None])

    def kept_workspace(self, kind: str, arguments: list[int]) -> None:
        """Every call asks for it: which one is first depends on the plan."""
        self.scratch(kind, arguments)

    def count_flops(self, flops: int) -> None:
        """Add floating-point operations to the current layer, phase and kernel call."""
        self._flops += flops
        super().count_flops(flops)

    follows_regions = True

    def begin_call(self) -> None:
        """Find out whose op it is; count its operations."""
        self._locate()
        self._outer_flops.append(self._flops)
        self._flops = 0

    def end_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, output: Any) -> None:
        """Note what it used and what it costs."""
        used = list(_tensors((args, kwargs)))
        if not self._in_engine and self._phase == _FORWARD:
            self._note_uses(used)
        if not self._views(func):
            results = list(_tensors(output))
            moved = sum(t.numel() * t.element_size() for t in (*used, *results))
            code = self._owner << 1 | self._in_engine
            self.costs.append(OpCost(code, self._flops, moved, _unit(func, results)))
        self._flops = self._outer_flops.pop()

    def _note_uses(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            death = self._live.get(tensor.untyped_storage()._cdata)
            if death is not None:
                if self._owner == OUTSIDE:
                    self.touch(death.index)
                else:
                    self._used.add(death.index)

    def host_transfer(self, moved_bytes: int) -> None:
        """Count bytes that go over PCI Express, in the pass of whoever waits for them."""
        self._locate()
        self.costs.append(OpCost(self._owner << 1 | self._in_engine, 0, moved_bytes, "host"))

    def _views(self, func: Any) -> bool:
        """Whether this op only looks at its argument in another way, without a kernel."""
        found = self._is_view.get(func)
        if found is None:
            returned = func._schema.returns
            found = bool(returned) and all(r.alias_info is not None and not r.alias_info.is_write for r in returned)
            self._is_view[func] = found
        return found


def _owners(paths: Sequence[str]) -> dict[str, int]:
    """Owner of each module path; `path[2:5]` stands for members 2 to 4 of a sequence."""
    owners: dict[str, int] = {}
    for owner, path in enumerate(paths, 1):
        run = _RUN.fullmatch(path)
        if run is None:
            owners[path] = owner
        else:
            parent = f"{run[1]}." if run[1] else ""
            owners |= {f"{parent}{member}": owner for member in range(int(run[2]), int(run[3]))}
    return owners


def _unit(func: Any, results: list[torch.Tensor]) -> str:
    if results and results[0].element_size() == _HALF_BYTES:
        return "half"
    backend = torch.backends.cudnn if "convolution" in str(func) else torch.backends.cuda.matmul
    return "tf32" if backend.allow_tf32 else "fp32"


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        if tree.is_meta:
            yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _tensors(item)


@contextlib.contextmanager
def holds_followed(rec: RegionRecorder) -> Iterator[None]:
    """While active, the recorder learns when autograd lets go of each tensor that it saved."""
    with torch.autograd.graph.saved_tensors_hooks(rec.saved, _unpacked):
        yield


def _unpacked(kept: Any) -> Any:
    return kept.unpacked() if isinstance(kept, _Saved) else kept
