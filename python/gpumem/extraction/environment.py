"""Makes `torch.cuda` and friends answer, in the tracing thread only, as if a GPU of the profile were there."""

from __future__ import annotations

import collections
import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad

from gpumem._core import find_gpu
from gpumem.checkpointing import offload
from gpumem.errors import ExtractionError
from gpumem.extraction.devices import SeeingDevices, devices_seen_again
from gpumem.extraction.target import KernelTarget
from gpumem.extraction.traceable import UNCOMPILED

if TYPE_CHECKING:
    from typing_extensions import Self

_ABSENT = object()


class _ForThread:
    """A replacement that only its own thread sees; every other thread gets the original."""

    def __init__(self, original: Any, replacement: Any) -> None:
        self._original = original
        self._replacement = replacement
        self._thread = threading.get_ident()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        chosen = self._replacement if threading.get_ident() == self._thread else self._original
        return chosen(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._original)


@contextlib.contextmanager
def patched(replacements: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Replace `owner.name` by a callable for this thread; restored whatever happens. Absent names are left out."""
    saved: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, replacement in replacements:
            original = getattr(owner, name, _ABSENT)
            if original is _ABSENT:
                continue
            saved.append((owner, name, original))
            setattr(owner, name, _ForThread(original, replacement))
        yield
    finally:
        for owner, name, original in reversed(saved):
            setattr(owner, name, original)


class InferenceFlag:
    """Stands for `torch.inference_mode`: under the real one a dispatch mode sees composite ops undecomposed.

    Replaced by `no_grad` plus this depth counter, which autocast's cast cache and `is_inference_mode_enabled` consult.
    """

    depth = 0


class _NoGradAsInference(torch.no_grad):
    def __new__(cls, mode: bool = True) -> Self:
        # no_grad's own would take a positional argument for a function to decorate.
        return object.__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self._mode = mode

    def __enter__(self) -> None:
        super().__enter__()
        InferenceFlag.depth += self._mode
        if not self._mode:
            torch.set_grad_enabled(self.prev)

    def __exit__(self, *exc: object) -> None:
        InferenceFlag.depth -= self._mode
        super().__exit__(*exc)


def _inference_mode(mode: Any = True) -> Any:
    # Used bare as a decorator, `torch.inference_mode` receives the function.
    return _NoGradAsInference()(mode) if callable(mode) else _NoGradAsInference(mode)


def _tensors_have_foreach_support(tensors: list[torch.Tensor], device: torch.device) -> bool:
    return device.type in ("cuda", "meta") and all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors)


def _has_foreign_override(arguments: Any) -> bool:
    """Whether a tensor subclass other than `Parameter` is among the arguments."""
    return any(
        isinstance(argument, torch.Tensor) and type(argument) not in (torch.Tensor, torch.nn.Parameter)
        for argument in arguments
    )


class _Stream:
    """Stands for streams and events: everything happens in order."""

    cuda_stream = 0
    stream_id = 0
    device = torch.device("cuda", 0)

    @staticmethod
    def is_capturing() -> bool:
        return False

    @staticmethod
    def synchronize() -> None: ...

    @staticmethod
    def wait_stream(stream: Any) -> None: ...

    @staticmethod
    def wait_event(event: Any) -> None: ...

    @staticmethod
    def record(stream: Any = None) -> None: ...

    @staticmethod
    def wait(stream: Any = None) -> None: ...


class _Properties:
    """What `torch.cuda.get_device_properties` answers: what is known of the card that is traced for."""

    # Of every NVIDIA GPU (CUDA C++ Programming Guide, technical specifications per compute capability).
    warp_size = 32
    regs_per_multiprocessor = 65536
    is_integrated = 0
    is_multi_gpu_board = 0

    def __init__(self, target: KernelTarget, note: Callable[[str], None]) -> None:
        self.major, self.minor = target.capability
        self._gpu = find_gpu(target.gpu)
        self._note = note

    def _of_this_card(self, value: Any) -> Any:
        self._note(
            f"the program asked torch.cuda for properties of the card and was answered with {self._gpu.name}'s: "
            "what it decides by them may differ on another"
        )
        return value

    @property
    def name(self) -> str:
        return str(self._of_this_card(self._gpu.torch_name))

    @property
    def total_memory(self) -> int:
        return int(self._of_this_card(self._gpu.total_bytes))

    @property
    def multi_processor_count(self) -> int:
        return int(self._of_this_card(self._gpu.sm_count))

    def __getattr__(self, attribute: str) -> Any:
        raise AttributeError(f"torch.cuda.get_device_properties().{attribute} is not known of {self._gpu.name}")


_NOTES = {
    "Stream": "several CUDA streams were taken as one: each has its own cached blocks and cuBLAS workspace",
    "empty_cache": "torch.cuda.empty_cache() of the program was left out: cached segments stay reserved",
    "counter": "a memory counter of torch.cuda was answered with 0: what the program decides by it may differ",
    "compile": UNCOMPILED,
    # Nodes are ordered by a counter of the thread that made them; on CUDA a backward pass has its own thread.
    "create_graph": "a backward pass made a graph (create_graph): CUDA runs that one in another order",
}
"""What a program does that changes bytes and is not followed, with what the report says about it."""

# Random generators, statistics and devices of `torch.cuda` that a model may set; nothing follows from them here.
_IGNORED = (
    "_lazy_init", "init", "synchronize", "set_device", "set_stream", "manual_seed", "manual_seed_all",
    "seed", "seed_all", "set_rng_state", "set_rng_state_all", "reset_peak_memory_stats",
    "reset_accumulated_memory_stats",
)  # fmt: skip
_BF16_EMULATED = "including_emulation" in inspect.signature(torch.cuda.is_bf16_supported).parameters
_ZERO = ("current_device", "initial_seed", "utilization")
# Counters that a model may print. Zero, because the trace does not know an allocator.
_COUNTERS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")


def cuda_environment(
    target: KernelTarget, clear_casts: Callable[[], None], note: Callable[[str], None]
) -> list[tuple[Any, str, Any]]:
    """The replacements that make this process look like one with the target's GPU.

    Args:
        target: The card.
        clear_casts: Empties autocast's cache of casts.
        note: Called with a sentence for the report when the program does what is not followed.
    """
    capability = target.capability
    properties = _Properties(target, note)

    def nothing(*args: Any, **kwargs: Any) -> None: ...

    def clear_autocast_cache() -> None:
        clear_casts()

    def always(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    def bf16_supported(including_emulation: bool = _BF16_EMULATED) -> bool:
        # Every card can hold a bfloat16 tensor, which is what newer PyTorch takes for support.
        return including_emulation or capability >= (8, 0)

    def noted(what: str, value: Any) -> Callable[..., Any]:
        def answer(*args: Any, **kwargs: Any) -> Any:
            note(_NOTES[what])
            return value

        return answer

    run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def backward(*args: Any, **kwargs: Any) -> Any:
        create_graph = args[3]
        if create_graph:
            note(_NOTES["create_graph"])
        with devices_seen_again():
            return run_backward(*args, **kwargs)

    push_saved_tensors_hooks = torch._C._autograd._push_saved_tensors_default_hooks

    def saved_tensors_hooks(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        push_saved_tensors_hooks(SeeingDevices(pack), SeeingDevices(unpack))

    def no_free_memory(*args: Any, **kwargs: Any) -> Any:
        raise ExtractionError(
            "the program asks how much GPU memory is free, which a trace does not know",
            "trace the model with the choice that it makes by that already made, or let the program decide by "
            "torch.cuda.get_device_properties().total_memory, which is answered for the card of gpu=",
        )

    replacements: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", always(True)),
        (torch.cuda, "is_initialized", always(True)),
        (torch.cuda, "is_bf16_supported", bf16_supported),
        (torch.cuda, "device_count", always(1)),
        *((torch.cuda, name, nothing) for name in _IGNORED),
        *((torch.cuda, name, always(0)) for name in _ZERO),
        *((torch.cuda, name, noted("counter", 0)) for name in _COUNTERS),
        (torch.cuda, "memory_stats", noted("counter", collections.defaultdict(int))),
        (torch.cuda, "memory_summary", noted("counter", "")),
        *((owner, "mem_get_info", no_free_memory) for owner in (torch.cuda, torch.cuda.memory)),
        (torch.autograd, "_engine_run_backward", backward),
        (torch._C._autograd, "_push_saved_tensors_default_hooks", saved_tensors_hooks),
        (torch.cuda, "empty_cache", noted("empty_cache", None)),
        # What `with torch.cuda.device(...)` calls; -1 says that there is nothing to go back to.
        (torch.cuda, "_exchange_device", always(-1)),
        (torch.cuda, "_maybe_exchange_device", always(-1)),
        (torch.cuda, "get_rng_state", lambda *args, **kwargs: torch.zeros(16, dtype=torch.uint8)),
        (torch.cuda, "get_device_properties", always(properties)),
        (torch.cuda, "get_device_name", lambda *args, **kwargs: properties.name),
        *((torch.cuda.nvtx, name, nothing) for name in ("range_push", "range_pop", "mark")),
        (torch.cuda, "Stream", noted("Stream", _Stream)),
        (torch.cuda, "Event", always(_Stream)),
        (torch.cuda, "current_stream", always(_Stream)),
        (torch.cuda, "default_stream", always(_Stream)),
        (torch.cuda, "get_device_capability", always(capability)),
        (torch.cuda, "is_current_stream_capturing", always(False)),
        # Gradient clipping asks for the device of C++'s groups, which is meta here.
        (clip_grad, "_has_foreach_support", _tensors_have_foreach_support),
        (clip_grad, "_device_has_foreach_support", lambda device: device.type in ("cuda", "meta")),
        # PyTorch's modules leave their inference fast paths when an override is about, as the tracing mode is.
        (torch.overrides, "has_torch_function", _has_foreign_override),
        (torch, "inference_mode", _inference_mode),
        (torch, "is_inference_mode_enabled", lambda: InferenceFlag.depth > 0),
        (torch, "clear_autocast_cache", clear_autocast_cache),
        # GradScaler and fused optimizers ask for it; the answer decides which kernels are called.
        (torch.backends.cudnn, "is_available", always(True)),
    ]
    replacements += _without_compiler(lambda: note(_NOTES["compile"]))
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        replacements += [
            (accelerator, "is_available", always(True)),
            (accelerator, "current_stream", always(_Stream)),
            (accelerator, "current_accelerator", always(torch.device("cuda"))),
        ]
    return replacements


def host_transfers(moved: Callable[[int], None]) -> list[tuple[Any, str, Any]]:
    """The replacements by which offloaded regions keep nothing on the host; `moved` is told of bytes on the way.

    They are told when a storage comes back, for both ways: only what the backward pass takes longer is a plan's cost.
    """

    def to_host(flat: torch.Tensor) -> tuple[int, torch.dtype]:
        return flat.numel(), flat.dtype

    def to_device(host: tuple[int, torch.dtype], device: torch.device) -> torch.Tensor:
        count, dtype = host
        moved(2 * count * dtype.itemsize)
        return torch.empty(count, dtype=dtype, device=device)

    return [(offload, "to_host", to_host), (offload, "to_device", to_device)]


def _without_compiler(note: Callable[[], None]) -> list[tuple[Any, str, Any]]:
    """What runs compiled code in this thread uncompiled. Only when dynamo is loaded, which takes a second."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return []

    def uncompiled(callback: Any) -> None:
        # None and False stand for code that is not to be compiled, as optimizers are.
        if callback is not None and callback is not False:
            note()

    if hasattr(dynamo, "_callback_from_stance"):
        return [(dynamo, "_callback_from_stance", uncompiled)]
    # Before torch 2.6.
    set_eval_frame = dynamo.set_eval_frame

    def set_no_frame(callback: Any) -> Any:
        uncompiled(callback)
        return set_eval_frame(None)

    return [(dynamo, "set_eval_frame", set_no_frame)]
