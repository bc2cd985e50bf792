"""What can be traced: wrappers are taken off, and modules that cannot be are refused before anything runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gpumem.errors import InputError
from gpumem.extraction.structural import is_compiled

UNCOMPILED = "traced without torch.compile: fused kernels keep fewer activations and other temporaries"
SPARSE = "what they take depends on how many different indices a batch has, which is data"
SPARSE_HINT = "build it with sparse=False, whose gradient is as large as the weight"
_PARALLEL = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def traceable(model: Any, mode: str) -> tuple[nn.Module, list[str]]:
    """The module to trace and what was assumed in taking it.

    A `torch.compile`d module is traced as the module it was made from.

    Raises:
        InputError: for what is no module, has no Python code, is spread over GPUs, is not initialised yet, or, in
            training, has nothing to train.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model must be a torch.nn.Module, not {_kind(model)}",
            "pass the module itself; for names such as 'torchvision:resnet50' use gpumem.sources.resolve",
        )
    assumptions: list[str] = []
    compiled = any(is_compiled(m) or getattr(m, "_compiled_call_impl", None) is not None for m in model.modules())
    if compiled:
        assumptions.append(UNCOMPILED)
    if is_compiled(model):
        model = model._orig_mod
    for path, module in model.named_modules():
        _refuse(path, module)
        if mode == "train":
            _refuse_sparse(path, module)
    assumptions += _left_out(model)
    if mode == "train" and not any(parameter.requires_grad for parameter in model.parameters()):
        frozen = any(True for _ in model.parameters())
        raise InputError(
            f"{type(model).__name__} has nothing to train: "
            + ("all its parameters have requires_grad=False" if frozen else "it has no parameters"),
            "pass mode='infer'" + (", or unfreeze what is trained" if frozen else ""),
        )
    return model, assumptions


def _left_out(model: nn.Module) -> list[str]:
    """Hooks of parameters hold the parameters they were made for, of which the trace has none."""
    hooked = [
        name
        for name, parameter in model.named_parameters()
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    ]
    if not hooked:
        return []
    return [f"gradient hooks of {len(hooked)} parameters ('{hooked[0]}') were left out: they are not run in a trace"]


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _named(path: str, module: nn.Module) -> str:
    return f"'{path}' ({type(module).__name__})" if path else type(module).__name__


def _refuse_sparse(path: str, module: nn.Module) -> None:
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse and module.weight.requires_grad:
        raise InputError(f"{_named(path, module)} has sparse gradients: {SPARSE}", SPARSE_HINT)


def _refuse(path: str, module: nn.Module) -> None:
    name = _named(path, module)
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            f"{name} is a TorchScript module: its operations have no Python code to trace",
            "pass the module that it was made from",
        )
    if type(module).__name__ in _PARALLEL:
        raise InputError(
            f"{name} spreads a model over GPUs: its gradient buckets, shards and replicas are not modelled",
            "pass the wrapped module (model.module) for what it takes on one GPU without them",
        )
    for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
        for key, tensor in tensors.items():
            if tensor is not None and is_lazy(tensor):
                raise InputError(
                    f"the {kind} '{key}' of {name} has no shape yet",
                    "run the model once on a sample, which initialises lazy modules",
                )
