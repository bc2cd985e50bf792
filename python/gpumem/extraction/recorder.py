"""Records what a traced step asks of the caching allocator: births and deaths of storages, scratch, layers, phases.

A `Recorder` is a `TorchDispatchMode`: it sees every ATen call on a meta tensor after autograd and autocast. Where a
CUDA kernel allocates otherwise than the meta kernel, a handler (`gpumem.extraction.ops`) answers instead.
Handlers record in the order in which CUDA requests memory; what they do not record is found in the outputs afterwards.
"""

from __future__ import annotations

import bisect
import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.errors import DataDependentError
from gpumem.extraction.host_reads import described, is_harmless, where
from gpumem.extraction.known_values import FOLLOWED, KnownValues
from gpumem.extraction.memory_format import is_contiguous
from gpumem.extraction.operands import CHECKS, one_device
from gpumem.extraction.overloads import cannot_allocate

if TYPE_CHECKING:
    from typing_extensions import Self

Handler = Callable[["Recorder", Any, tuple[Any, ...], dict[str, Any]], Any]

# Tags of `Recorder.events`, in the low two bits of each integer; the core reads the same numbers.
ALLOC, FREE, SCRATCH, MARK = 0, 1, 2, 3
# The formula stage stands in the low three bits of a SCRATCH event's payload.
STAGE_BITS = 3
PHASES = ("setup", "forward", "backward", "optimizer", "end")
# A program that draws more single numbers than this in a trace gets random ones from then on.
_MOST_EQUAL_DRAWS = 10_000
_PHASE_INDEX = {name: index for index, name in enumerate(PHASES)}
_BACKWARD = _PHASE_INDEX["backward"]

_current_node = torch._C._current_autograd_node
_sequence_nr = torch._C._autograd._get_sequence_nr


class _StorageDeath(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that remembers which recorded storage it watches."""

    __slots__ = ("index", "key")
    index: int
    key: int


class Recorder(TorchDispatchMode):
    """The trace of one run of the loop.

    Attributes:
        events: Tagged integers in order (see `ALLOC`, `FREE`, `SCRATCH`, `MARK`).
        sizes: Requested bytes of each recorded allocation.
        origins: `(op, layer, phase)` of each allocation, indices into `ops`, `layers` and `PHASES`.
        formulas: `(kind, integer arguments, op, layer, phase)` of each scratch formula that the core evaluates.
        categories: Category of the allocations that are more than activations or temporaries.
        flops: Floating-point operations by `(layer, phase)`.
        depends_on_capability: Whether a kernel was chosen by compute capability.
        host_reads: `(op, layer)` of each read of a value that does not exist in a trace; a zero was returned.
        allow_host_reads: Answer every such read with zeros, instead of raising where it is not known to be harmless.
        draw: What single random numbers drawn on the host are answered with.
        draws: How many were drawn.
        notes: Sentences for the report: what the program did that was not followed.
        failed_layer: The innermost layer whose forward pass raised, or None.
        unverified: ATen ops that were never part of a run whose events equal CUDA's.
    """

    def __init__(self, handlers: dict[Any, Handler], verified: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[int] = []
        self.sizes: list[int] = []
        self.origins: list[tuple[int, int, int]] = []
        self.formulas: list[tuple[str, list[int], int, int, int]] = []
        self.categories: dict[int, str] = {}
        self.flops: dict[tuple[int, int], int] = {}
        self.host_reads: list[tuple[str, int]] = []
        self.allow_host_reads = False
        self.draw = 1 - 2.0**-24
        self.draws = 0
        self._later_draws = random.Random(0)
        self.notes: dict[str, None] = {}
        self.unverified: set[str] = set()
        self.ops: list[str] = []
        self.layers: list[str] = [""]
        self.depends_on_capability = False
        self.failed_layer: int | None = None
        self._handlers = handlers
        self._verified = verified
        self._checks = dict(CHECKS)
        self._op_index: dict[Any, int] = {}
        self._known = KnownValues()
        self._live: dict[int, _StorageDeath] = {}
        self._made: set[str] = set()
        self._op = 0
        self._phase = 0
        self._layer = 0
        self._layer_stack: list[int] = []
        self._layer_of_node: tuple[list[int], list[int]] = ([], [])
        self._node: int | None = None
        self._node_began = 0
        self.recording = True
        self.interrupt: Callable[[], None] | None = None
        self.intern("setup")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Dynamo's wrapper would add two Python frames to every op.
        return False

    # ------------------------------------------------------------------ where we are

    def intern(self, name: str) -> int:
        """Index of an op name in `ops`."""
        index = self._op_index.get(name)
        if index is None:
            index = self._op_index[name] = len(self.ops)
            self.ops.append(name)
        return index

    def mark(self, phase: str) -> None:
        """Note the border of a phase."""
        self._phase = _PHASE_INDEX[phase]
        self.events.append(self._phase << 2 | MARK)

    def enter_layer(self, layer: int) -> None:
        """Attribute what follows to `layer` (an index into `layers`)."""
        self._layer_stack.append(self._layer)
        self._layer = layer
        self._note_nodes()

    def leave_layer(self) -> None:
        """Undo the last `enter_layer`."""
        self._layer = self._layer_stack.pop()
        self._note_nodes()

    def _note_nodes(self) -> None:
        """Autograd nodes created from here on belong to the current layer; their sequence numbers tell later."""
        numbers, layers = self._layer_of_node
        number = _sequence_nr()
        if numbers and numbers[-1] >= number:
            layers[-1] = self._layer
        else:
            numbers.append(number)
            layers.append(self._layer)

    def note_failure(self) -> None:
        """An exception is leaving the current layer; the innermost one stands."""
        if self.failed_layer is None:
            self.failed_layer = self._layer

    @property
    def phase(self) -> str:
        """The phase that began last."""
        return PHASES[self._phase]

    @property
    def in_backward(self) -> bool:
        """Whether the autograd engine is evaluating a node (also while a checkpoint recomputes its forward)."""
        return _current_node() is not None

    def _origin(self) -> tuple[int, int, int]:
        node = _current_node()
        if node is None:
            return self._op, self._layer, self._phase
        layer = self._layer
        number = node._sequence_nr()
        if number != self._node:
            self._node, self._node_began = number, len(self.sizes)
        if not self._layer_stack:
            numbers, layers = self._layer_of_node
            at = bisect.bisect_right(numbers, number) - 1
            layer = layers[at] if at >= 0 else 0
        return self._op, layer, _BACKWARD

    # ------------------------------------------------------------------ what handlers call

    def alloc(self, nbytes: int, category: str | None = None) -> int:
        """Record a request for `nbytes` and return its index, which `free` ends. Zero bytes are no request."""
        index = len(self.sizes)
        self.origins.append(self._origin())
        self.sizes.append(nbytes)
        self.events.append(index << 2 | ALLOC)
        if category is not None:
            self.categories[index] = category
        return index

    def free(self, index: int) -> None:
        """Record the end of an allocation made by `alloc`."""
        self.events.append(index << 2 | FREE)

    def requested(self, *outputs: Any) -> None:
        """Record the storages of these tensors (or nested sequences of them), in this order, unless known already."""
        for output in outputs:
            if isinstance(output, torch.Tensor):
                if output.is_meta:
                    self._track(output)
            elif isinstance(output, (tuple, list)):
                self.requested(*output)

    def formula(self, kind: str, arguments: Sequence[int]) -> int:
        """Register scratch that depends on the GPU, or not polynomially on the batch: the core computes it.

        Args:
            kind: Name of a formula of the core (`rust/gpumem-core/src/formula`).
            arguments: Integers, each polynomial in the batch size (sizes, strides, flags).

        Returns:
            A handle for `stage`.
        """
        self.formulas.append((kind, list(arguments), *self._origin()))
        return len(self.formulas) - 1

    def stage(self, formula: int, stage: int = 0) -> None:
        """The formula's allocations and frees of this stage happen now."""
        self.events.append((formula << STAGE_BITS | stage) << 2 | SCRATCH)

    def scratch(self, kind: str, arguments: Sequence[int]) -> None:
        """A formula with one stage, here and now."""
        self.stage(self.formula(kind, arguments))

    def count_flops(self, flops: int) -> None:
        """Add floating-point operations to the current layer and phase."""
        _, layer, phase = self._origin()
        self.flops[layer, phase] = self.flops.get((layer, phase), 0) + flops

    def flops_by_layer(self) -> list[tuple[int, int]]:
        """Forward and backward FLOPs of each layer, of all traced steps."""
        forward, backward = _PHASE_INDEX["forward"], _BACKWARD
        return [
            (self.flops.get((layer, forward), 0), self.flops.get((layer, backward), 0))
            for layer in range(len(self.layers))
        ]

    def kept_workspace(self, kind: str, arguments: list[int]) -> None:
        """What a library requests at the first of equal calls and keeps."""
        if self.first(f"{kind} {arguments}"):
            self.scratch(kind, arguments)

    def first(self, what: str) -> bool:
        """Whether the program needs `what` for the first time: what a process makes once and keeps."""
        known = what in self._made
        self._made.add(what)
        return not known

    def known_values(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Host tensor with the values of `tensor`, where a trace knows them; the report says what was assumed."""
        known = self._known.of(tensor)
        if known is None:
            return None
        if known.assumed is not None:
            self.note(f"{known.assumed} ({where()})")
        return known.values.expand(tensor.shape)

    def host_read(self, op: str) -> None:
        """A value is read that a trace does not have: the caller answers zero, and the report lists the place.

        Raises:
            DataDependentError: unless the reading code is known to be harmless or zeros are allowed everywhere.
        """
        if not is_harmless():
            if not self.allow_host_reads:
                path = self.layer_path()
                place = f"'{path}'" if path else "the model itself"
                raise DataDependentError(
                    f"{described(op)} in {place} reads tensor values on the host ({where()}), which a trace has not",
                    "trace a part without it, replace it by a shape-based computation, or pass host_reads='zeros' to "
                    "answer zeros (the estimate then holds for inputs that behave so)",
                    path,
                    op,
                )
            self.host_reads.append((op, self._origin()[1]))

    def host_draw(self) -> float:
        """A single random number is drawn on the host: `draw` (see `host_draws.py`)."""
        self.draws += 1
        if self.draws > _MOST_EQUAL_DRAWS:
            # Not a layer's: samples, tokens, or a loop that waits for another number.
            return self._later_draws.random()
        self.note(
            f"a random number was drawn on the host ({where()}): each was taken as {self.draw:.0f}, which needs more "
            f"memory than {1 - round(self.draw)}; drawn from 0 to 1, layers are usually dropped below a threshold"
        )
        return self.draw

    def note(self, sentence: str) -> None:
        """Have the report say this, once."""
        self.notes[sentence] = None

    def layer_path(self) -> str:
        """Dotted path of the module that is running."""
        return self.layers[self._origin()[1]]

    # ------------------------------------------------------------------ storages

    def register(self, tensor: torch.Tensor, category: str, layer: int) -> None:
        """Record a tensor that exists before the loop starts (parameter, buffer) and the layer it belongs to."""
        outer, self._layer = self._layer, layer
        self._track(tensor)
        self.tag(tensor, category)
        self._layer = outer

    def tag(self, tensor: torch.Tensor, category: str) -> None:
        """State the category of a recorded tensor's storage; the first statement stands."""
        death = self._live.get(tensor.untyped_storage()._cdata)
        if death is not None:
            self.categories.setdefault(death.index, category)

    def host_transfer(self, moved_bytes: int) -> None:
        """Bytes went to the host or came from there; only costs depend on it."""

    def allocation_of(self, tensor: torch.Tensor) -> int:
        """Index of the recorded allocation that holds this tensor."""
        return self._live[tensor.untyped_storage()._cdata].index

    def made_by_current_node(self, tensor: torch.Tensor) -> bool:
        """Whether the autograd node that is being evaluated has requested this tensor's storage itself."""
        return self.allocation_of(tensor) >= self._node_began

    def _track(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        nbytes = storage.nbytes()
        if not nbytes:
            return
        death = _StorageDeath(storage, self._died)
        death.key = key
        death.index = self.alloc(nbytes)
        self._live[key] = death

    def _died(self, death: _StorageDeath) -> None:
        # The address is reused at once: forget it before anything else can run.
        self._live.pop(death.key, None)
        self._known.forget(death.key)
        if self.recording:
            self.events.append(death.index << 2 | FREE)

    # ------------------------------------------------------------------ dispatch

    def _first_seen(self, func: Any) -> int:
        op = self._op_index[func] = len(self.ops)
        self.ops.append(str(func))
        if str(func) not in self._verified and not cannot_allocate(func):
            self.unverified.add(str(func))
        if torch.Tag.pointwise in func.tags:
            self._checks.setdefault(func, one_device)
        return op

    def take_interrupt(self) -> None:
        """Do what a Ctrl-C asked for, if there was one (`gpumem.extraction.interrupts`)."""
        if self.interrupt is not None:
            interrupt, self.interrupt = self.interrupt, None
            interrupt()

    # Hooks of a recorder that follows regions (`gpumem.extraction.regions`): it must add no frame to
    # `__torch_dispatch__`, since handlers look at their callers and count references.
    follows_regions = False

    def begin_call(self) -> None:
        """An op is about to run; called only if `follows_regions`."""

    def end_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, output: Any) -> None:
        """The op has run; called only if `follows_regions`."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.interrupt is not None:
            self.take_interrupt()
        if self.follows_regions:
            self.begin_call()
        # The autograd engine calls from C++, where no Python function has set `CudaDevices` aside.
        with torch._C.DisableTorchFunction():
            op = self._op_index.get(func)
            if op is None:
                op = self._first_seen(func)
            check = self._checks.get(func)
            if check is not None:
                check(args)
            outer, self._op = self._op, op
            try:
                handler = self._handlers.get(func)
                output = func(*args, **(kwargs or {})) if handler is None else handler(self, func, args, kwargs or {})
                if isinstance(output, torch.Tensor):
                    if output.is_meta:
                        self._track(output)
                elif output is not None:
                    self.requested(output)
                if func in FOLLOWED:
                    self._known.follow(func, args, kwargs or {}, output)
                if self.follows_regions:
                    self.end_call(func, args, kwargs, output)
            finally:
                self._op = outer
            return output


class Temporaries:
    """Allocations of one kernel call that end with it.

    `with Temporaries(rec) as tmp:` frees what is left, in the order of allocation, on leaving.
    """

    __slots__ = ("_live", "_rec")

    def __init__(self, rec: Recorder) -> None:
        self._rec = rec
        self._live: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for index in self._live:
            self._rec.free(index)
        self._live.clear()

    def alloc(self, nbytes: int) -> int | None:
        """Request `nbytes` (None when that is zero)."""
        if not nbytes:
            return None
        index = self._rec.alloc(nbytes)
        self._live.append(index)
        return index

    def contiguous(
        self, tensor: torch.Tensor | None, memory_format: torch.memory_format = torch.contiguous_format
    ) -> int | None:
        """The copy that `tensor.contiguous(memory_format=...)` makes inside a kernel, or None when it makes none."""
        if tensor is None or not tensor.is_meta or is_contiguous(tensor, memory_format):
            return None
        return self.alloc(tensor.numel() * tensor.element_size())

    def free(self, *indices: int | None) -> None:
        """End some of them early, in this order."""
        for index in indices:
            if index is not None:
                self._rec.free(index)
                self._live.remove(index)
