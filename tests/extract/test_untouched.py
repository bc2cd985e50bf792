"""After extraction the user's module and the process are as before, also when it failed half-way."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpumem.api import extract
from gpumem.errors import ExtractionError
from tests.extract import models

SHAPE = (3, 8, 8)


class _Stop(BaseException):
    """Like KeyboardInterrupt: no Exception."""


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        raise ValueError("in backward")


def _raise(error: BaseException) -> Any:
    raise error


def _bad_optimizer(params: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(params)
    optimizer.register_step_pre_hook(lambda *_: _raise(ValueError("in the optimizer")))
    return optimizer


def _bad_backward(output: torch.Tensor, target: Any) -> torch.Tensor:
    return _Raises.apply(output).sum()  # type: ignore[no-any-return]


def _fails(error: type[BaseException], shape: tuple[int, ...] = SHAPE, **keywords: Any) -> Callable[[nn.Module], None]:
    def run(model: nn.Module) -> None:
        with pytest.raises(error):
            extract(model, shape, **keywords)

    return run


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "train": lambda model: extract(model, SHAPE),
    "amp": lambda model: extract(model, SHAPE, precision="amp-fp16", optimizer="adamw"),
    "half": lambda model: extract(model, SHAPE, precision="bf16", channels_last=True),
    "infer": lambda model: extract(model, SHAPE, mode="infer"),
    "wrong shape": _fails(ExtractionError, shape=(4, 8, 8)),
    "criterion raises": _fails(ExtractionError, criterion=lambda o, t: _raise(ValueError("in the criterion"))),
    "backward raises": _fails(ExtractionError, criterion=_bad_backward),
    "optimizer raises": _fails(ExtractionError, optimizer=_bad_optimizer),
    "interrupted": _fails(_Stop, criterion=lambda o, t: _raise(_Stop())),
    "interrupted in step": _fails(KeyboardInterrupt, step=lambda m, o, b: _raise(KeyboardInterrupt())),
}


def _used_model() -> nn.Module:
    """In mixed modes, with gradients and hooks."""
    model = models.convolutional()
    model(torch.randn(2, *SHAPE)).sum().backward()
    model[1].eval()
    model[5].bias.requires_grad_(False)
    model[0].register_forward_hook(lambda module, args, output: None)
    return model


def _attributes(model: nn.Module) -> list[Any]:
    """Identity of everything that each submodule holds, and the settings of each tensor."""
    seen: list[Any] = []
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            seen.append((path, name, id(value)))
            if isinstance(value, dict):
                seen.extend((path, name, key, id(item)) for key, item in value.items())
        seen.append((path, module.training))
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        seen.append((name, tensor.device, tensor.dtype, tensor.stride(), tensor.requires_grad, tensor.data_ptr()))
        seen.append((name, id(tensor.grad), tensor._version, tensor._backward_hooks))
    return seen


def _process() -> dict[str, Any]:
    """The state of this process and thread that tracing changes meanwhile."""
    return {
        "python": random.getstate(),
        "numpy": repr(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cuda", "cpu")],
        "dtype": torch.get_default_dtype(),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "gc": gc.isenabled(),
        "call": nn.Module.__call__,
        "cuda": {name: id(value) for name, value in vars(torch.cuda).items() if callable(value)},
        "torch functions": {name: id(value) for name, value in vars(torch).items() if callable(value)},
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "choices": torch._C._dispatch_has_kernel_for_dispatch_key("aten::batch_norm", "AutogradMeta"),
        "included": str(torch._C._dispatch_tls_local_include_set()),
        "excluded": str(torch._C._dispatch_tls_local_exclude_set()),
    }


@pytest.mark.parametrize("way", WAYS)
def test_module_and_process_stay_as_they_were(way: str) -> None:
    extract(models.mlp(), (8,))  # What is made once per process exists from here on.
    model = _used_model()
    random.seed(5)
    before_model, before_process = _attributes(model), _process()
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    WAYS[way](model)
    assert _attributes(model) == before_model
    after = _process()
    assert {name for name in after if after[name] != before_process[name]} == set()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in values.items())


@pytest.mark.parametrize("way", WAYS)
def test_nothing_keeps_the_module_alive(way: str) -> None:
    model = _used_model()
    dead = weakref.ref(model)
    WAYS[way](model)
    del model
    gc.collect()
    assert dead() is None


def test_a_failure_does_not_change_the_next_answer() -> None:
    model = models.convolutional()
    expected = extract(model, SHAPE)
    for way in WAYS.values():
        way(model)
    assert extract(model, SHAPE) == expected


def test_dynamo_is_loaded_outside_of_the_traced_environment() -> None:
    code = (
        "import torch, gpumem\n"
        "gpumem.extract(torch.nn.Linear(8, 4), (8,))\n"
        "from torch._dynamo.device_interface import CudaInterface\n"
        "print(CudaInterface.is_available.__module__, isinstance(torch.cuda.Event, type))\n"
        "print(isinstance(CudaInterface.Event, type), CudaInterface.synchronize is torch.cuda.synchronize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
