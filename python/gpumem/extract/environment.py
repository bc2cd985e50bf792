"""Makes `torch.cuda` and friends answer, in the tracing thread only, as if a GPU of the profile were there."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

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
    def __new__(cls, mode: bool = True) -> _NoGradAsInference:
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

    def __exit__(self, *exc: Any) -> None:
        InferenceFlag.depth -= self._mode
        super().__exit__(*exc)


def _inference_mode(mode: Any = True) -> Any:
    # Used bare as a decorator, `torch.inference_mode` receives the function.
    return _NoGradAsInference()(mode) if callable(mode) else _NoGradAsInference(mode)


class _Stream:
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


def cuda_environment(capability: tuple[int, int], clear_casts: Callable[[], None]) -> list[tuple[Any, str, Any]]:
    """The replacements that make this process look like one with a GPU of this compute capability."""

    def nothing(*args: Any, **kwargs: Any) -> None: ...

    def clear_autocast_cache() -> None:
        clear_casts()

    def always(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    replacements: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", always(True)),
        (torch.cuda, "is_initialized", always(True)),
        (torch.cuda, "is_bf16_supported", always(capability >= (8, 0))),
        (torch.cuda, "current_device", always(0)),
        (torch.cuda, "device_count", always(1)),
        (torch.cuda, "_lazy_init", nothing),
        (torch.cuda, "init", nothing),
        (torch.cuda, "synchronize", nothing),
        (torch.cuda, "empty_cache", nothing),
        (torch.cuda, "current_stream", always(_Stream)),
        (torch.cuda, "get_device_capability", always(capability)),
        (torch.cuda, "is_current_stream_capturing", always(False)),
        (torch, "inference_mode", _inference_mode),
        (torch, "is_inference_mode_enabled", lambda: InferenceFlag.depth > 0),
        (torch, "clear_autocast_cache", clear_autocast_cache),
        # GradScaler and fused optimizers ask for it; the answer decides which kernels are called.
        (torch.backends.cudnn, "is_available", always(True)),
    ]
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        replacements += [
            (accelerator, "is_available", always(True)),
            (accelerator, "current_stream", always(_Stream)),
            (accelerator, "current_accelerator", always(torch.device("cuda"))),
        ]
    return replacements


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Python's and torch's CPU generators are as before afterwards (numpy's too when it is loaded)."""
    import sys

    numpy = sys.modules.get("numpy")
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)


def seed_everything(seed: int = 0) -> None:
    """Same Python-level random choices (layer drop, masks drawn on the host) in every trace."""
    import sys

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
