"""What a model takes: shapes without the batch, or example tensors; turned into batches of any size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch

from gpumem.errors import InputError
from gpumem.text import input_from_text


@dataclass(frozen=True)
class TensorSpec:
    """One input tensor.

    Attributes:
        shape: Shape without the batch dimension (with `batched=False`: the whole shape).
        dtype: Element type. Floating inputs follow a pure 16-bit precision.
        batched: Whether the batch is its first dimension.
        batch_dim: Position of the batch dimension in the full shape.
        fill: Value of every element where the host creates it; None leaves it uninitialised.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    batched: bool = True
    batch_dim: int = 0
    fill: float | None = None

    def full_shape(self, batch: int) -> tuple[int, ...]:
        """The shape for this batch size."""
        if not self.batched:
            return self.shape
        return (*self.shape[: self.batch_dim], batch, *self.shape[self.batch_dim :])

    def make(self, batch: int, device: str, float_dtype: torch.dtype | None, channels_last: bool) -> torch.Tensor:
        """Allocate it on `device`, as a script does that receives data there. Integers are zeros (valid indices)."""
        shape = self.full_shape(batch)
        if not self.dtype.is_floating_point and not self.dtype.is_complex:
            return torch.full(shape, int(self.fill or 0), dtype=self.dtype, device=device)
        dtype = float_dtype if float_dtype is not None and self.dtype == torch.float32 else self.dtype
        layout = torch.contiguous_format
        if channels_last and len(shape) in (4, 5):
            layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        return torch.empty(shape, dtype=dtype, device=device, memory_format=layout)


def parse_input(description: Any) -> Any:
    """Turn a user's description into a tree of `TensorSpec`.

    Args:
        description: A shape without the batch (`(3, 224, 224)`), a `TensorSpec`, an example tensor (its first dimension
            is the batch), `(shape, dtype)`, a list or tuple of those (several positional inputs), or a mapping of
            argument names to those; or the text of such a description (`"3,224,224"`, see `gpumem.text`). Inside of
            one, other values (numbers, strings, None) are passed as they are.

    Raises:
        InputError: for a shape with non-positive or non-integer dimensions, or a description without any tensor.
    """
    tree = _parse(input_from_text(description) if isinstance(description, str) else description)
    if not _has_tensor(tree) and tree != {}:
        raise InputError(
            f"input {description!r} describes no tensor",
            "give the shape of one sample, such as (3, 224, 224), with a type ((128,), torch.int64), or an example "
            "tensor; several inputs as a tuple or a mapping of those",
        )
    return tree


def _has_tensor(tree: Any) -> bool:
    if isinstance(tree, dict):
        return any(map(_has_tensor, tree.values()))
    return any(map(_has_tensor, tree)) if isinstance(tree, (tuple, list)) else isinstance(tree, TensorSpec)


def _parse(description: Any) -> Any:
    if isinstance(description, TensorSpec):
        _checked(description.shape)
        return description
    if isinstance(description, torch.Tensor):
        if description.dim() == 0:
            return TensorSpec((), description.dtype, batched=False)
        return TensorSpec(tuple(description.shape[1:]), description.dtype)
    if isinstance(description, Mapping):
        return {name: _parse(value) for name, value in description.items()}
    if isinstance(description, torch.Size) or _is_shape(description):
        return TensorSpec(_checked(tuple(description)))
    if isinstance(description, (tuple, list)):
        if len(description) == 2 and isinstance(description[1], torch.dtype):
            shape = description[0]
            return TensorSpec(_checked(tuple(shape) if not isinstance(shape, int) else (shape,)), description[1])
        return type(description)(_parse(item) for item in description)
    return description


def _is_shape(value: Any) -> bool:
    return (
        isinstance(value, (tuple, list))
        and len(value) > 0
        and all(isinstance(n, Real) and not isinstance(n, bool) for n in value)
    )


def _checked(shape: tuple[int, ...]) -> tuple[int, ...]:
    for size in shape:
        if not isinstance(size, Integral) or size < 1:
            raise InputError(
                f"input shape {shape} has the dimension {size!r}",
                "give the shape of one sample in positive integers, without the batch, such as (3, 224, 224)",
            )
    return shape


def make_inputs(tree: Any, batch: int, device: str, float_dtype: torch.dtype | None, channels_last: bool) -> Any:
    """Allocate the tensors of a tree of `TensorSpec` in order."""
    if isinstance(tree, TensorSpec):
        return tree.make(batch, device, float_dtype, channels_last)
    if isinstance(tree, dict):
        return {name: make_inputs(item, batch, device, float_dtype, channels_last) for name, item in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(make_inputs(item, batch, device, float_dtype, channels_last) for item in tree)
    return tree


def describe(tree: Any) -> str:
    """One line for the report, with the batch written as `b`."""
    if isinstance(tree, TensorSpec):
        sizes = [str(n) for n in tree.shape]
        if tree.batched:
            sizes.insert(tree.batch_dim, "b")
        return f"{str(tree.dtype).removeprefix('torch.')}[{', '.join(sizes)}]"
    if isinstance(tree, dict):
        return ", ".join(f"{name}={describe(item)}" for name, item in tree.items())
    if isinstance(tree, (tuple, list)):
        return ", ".join(describe(item) for item in tree)
    return repr(tree)
