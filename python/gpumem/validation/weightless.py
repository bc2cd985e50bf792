"""Pickles of models without their weights: values never matter for memory, and a model may be larger than a disk.

Parameters, tensors on the meta device, results of a forward pass and large floating-point buffers travel as shape,
strides and dtype, and come back as zeros in memory that nothing has touched. Everything else has its values: an index
table with zeros in it would be another model.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import nn

from gpumem.errors import InputError

# A floating-point buffer up to this size keeps its values.
_KEPT_BYTES = 1 << 20
_PLAIN = (torch.Tensor, nn.Parameter)
_WAY_OUT = (
    "give the name of a function that makes the model, 'package.module:factory', in place of the model (then the "
    "process that runs it makes its own)"
)


def zeros(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, *, convert: torch.dtype | None = None
) -> torch.Tensor:
    """A host tensor of zeros whose pages are not in memory until they are written.

    Args:
        shape: Its shape.
        stride: Its strides in elements.
        dtype: Its dtype.
        convert: Dtype to have instead where `dtype` is a floating-point one.
    """
    if convert is not None and dtype.is_floating_point:
        dtype = convert
    elements = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if math.prod(shape) == 0:
        return torch.empty_strided(shape, stride, dtype=dtype)
    # numpy asks calloc, torch.zeros writes.
    raw = torch.from_numpy(numpy.zeros(elements * dtype.itemsize, dtype=numpy.uint8))
    return raw.view(dtype).as_strided(shape, stride)


def without_values(tensor: torch.Tensor) -> bool:
    """Whether the tensor travels as its shape."""
    if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.is_quantized:
        return False
    if isinstance(tensor, nn.Parameter) or tensor.is_meta or not tensor.is_leaf:
        return True
    return tensor.is_floating_point() and tensor.numel() * tensor.element_size() > _KEPT_BYTES


class _Mixin:
    """Sends tensors by number, so that ties stay ties."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)  # type: ignore[call-arg]
        self._numbers: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        """What stands for a tensor in the pickle; None for what is pickled as usual."""
        if not isinstance(value, torch.Tensor):
            return None
        if without_values(value):
            shape, stride = tuple(value.shape), value.stride()
            needs = value.requires_grad and value.is_leaf
            kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
            return kind, self._number(value), shape, stride, value.dtype, needs
        if value.device.type != "cpu":
            return "moved", self._number(value), value.detach().cpu()
        return None

    def _number(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self._kept)
            self._kept.append(tensor)
        return self._numbers[id(tensor)]


class _Pickler(_Mixin, pickle.Pickler):
    pass


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, convert: torch.dtype | None) -> None:
        super().__init__(file)
        self._convert = convert
        self._made: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        kind, number, *facts = pid
        if number not in self._made:
            self._made[number] = self._make(kind, facts)
        return self._made[number]

    def _make(self, kind: str, facts: list[Any]) -> torch.Tensor:
        if kind == "moved":
            moved: torch.Tensor = facts[0]
            return moved
        shape, stride, dtype, needs = facts
        # A pure precision converts all floating-point parameters before they are moved: made in it, they take half.
        tensor = zeros(shape, stride, dtype, convert=self._convert if kind == "parameter" else None)
        return nn.Parameter(tensor, needs) if kind == "parameter" else tensor.requires_grad_(needs)


def takes_definitions_along() -> bool:
    """Whether cloudpickle is installed: classes and functions without an importable name then travel by value."""
    return importlib.util.find_spec("cloudpickle") is not None


def _pickler() -> Callable[[io.BytesIO], Any]:
    if not takes_definitions_along():
        return _Pickler
    cloudpickle = importlib.import_module("cloudpickle")
    return type("_CloudPickler", (_Mixin, cloudpickle.CloudPickler), {})


def dumps(value: Any, what: str) -> bytes:
    """Pickle `value` without weights.

    Args:
        value: Anything with modules in it.
        what: Its name, for the error.

    Raises:
        InputError: it cannot be pickled; the hint names the way out.
    """
    file = io.BytesIO()
    try:
        _pickler()(file).dump(value)
    except Exception as error:
        raise InputError(
            f"{what} cannot be sent to the process that runs it: {type(error).__name__}: {error}", _hint(str(error))
        ) from error
    return file.getvalue()


def loads(data: bytes, convert: torch.dtype | None = None) -> Any:
    """Inverse of `dumps`.

    Args:
        data: From `dumps`.
        convert: Dtype for floating-point parameters, or None for their own.
    """
    return _Unpickler(io.BytesIO(data), convert).load()


def _hint(text: str) -> str:
    nameless = "local" in text or "lambda" in text or "not found as" in text
    cloudpickle = ", or pip install cloudpickle, which sends classes and functions made inside of others"
    return _WAY_OUT + (cloudpickle if nameless and not takes_definitions_along() else "")


def materialised(model: nn.Module, convert: torch.dtype | None = None) -> nn.Module:
    """`model` with zeros in host memory where it has meta tensors, in place; ties stay ties.

    Args:
        model: Any module.
        convert: Dtype for floating-point parameters that were meta, or None for their own.
    """
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for group in (module._parameters, module._buffers):
            for name, tensor in list(group.items()):
                if tensor is None or not tensor.is_meta:
                    continue
                if id(tensor) not in made:
                    made[id(tensor)] = _from_meta(tensor, convert)
                group[name] = made[id(tensor)]  # type: ignore[assignment]
    return model


def _from_meta(tensor: torch.Tensor, convert: torch.dtype | None) -> torch.Tensor:
    is_parameter = isinstance(tensor, nn.Parameter)
    twin = zeros(tuple(tensor.shape), tensor.stride(), tensor.dtype, convert=convert if is_parameter else None)
    return nn.Parameter(twin, tensor.requires_grad) if is_parameter else twin
