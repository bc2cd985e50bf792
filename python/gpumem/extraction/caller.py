"""Leaves the state in which `extract` was called, meanwhile: scripts train in PyTorch's default state."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from gpumem.extraction.devices import META, is_cuda_device

_AUTOCAST_DEVICES = ("cuda", "cpu")


@contextlib.contextmanager
def caller_left() -> Iterator[None]:
    """Out of the caller's `no_grad`, `inference_mode`, `autocast`, default device and dispatch modes, in this thread.

    The default dtype stays: a script would run under it too. So does a default device `cuda`, as the traced one.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        _autocast_left(),
        _default_device_left(),
        _disable_current_modes() if torch._C._len_torch_dispatch_stack() else contextlib.nullcontext(),
    ):
        yield


@contextlib.contextmanager
def _autocast_left() -> Iterator[None]:
    enabled = [device for device in _AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    # The outermost block clears the cast cache when it ends: the traced loop's must be outermost.
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    for device in enabled:
        torch.set_autocast_enabled(device, False)
    for _ in range(depth):
        torch.autocast_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(depth):
            torch.autocast_increment_nesting()
        for device in enabled:
            torch.set_autocast_enabled(device, True)


def _default_device_left() -> contextlib.AbstractContextManager[object]:
    contexts = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    if not contexts:
        return contextlib.nullcontext()
    return META if is_cuda_device(contexts[-1].device) else torch.device("cpu")


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Python's and torch's CPU generators are as before afterwards (numpy's too when it is loaded).

    Meanwhile they are seeded, so that choices drawn on the host (layer drop, masks) are the same in every trace. CUDA's
    generators are not touched, which `torch.manual_seed` would do.
    """
    numpy = sys.modules.get("numpy")
    python_state, torch_state = random.getstate(), torch.default_generator.get_state()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    _seed()
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)


def _seed() -> None:
    random.seed(0)
    torch.default_generator.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def random_was_drawn() -> bool:
    """Whether a generator of `random_state_kept` moved on; call it inside. Seeds them again."""
    before = _states()
    _seed()
    return before != _states()


def _states() -> tuple[object, ...]:
    numpy = sys.modules.get("numpy")
    arrays = () if numpy is None else tuple(str(part) for part in numpy.random.get_state())
    return random.getstate(), torch.default_generator.get_state().tolist(), arrays
