"""Values of device tensors that a trace does know, though it has none: so that reading them stops nothing.

Known is what the host has written (a mask made with numpy and copied over), and what tests for NaN and infinity give,
since a training run that goes well has neither. A few ops are followed (`FOLLOWED`): comparisons, logic, sums, `all`
and `any`, views and casts of known tensors are known again, computed on the host by the op itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten

MOST_ELEMENTS = 1 << 20
"""Larger tensors are not kept on the host: a mask or a table of indices has fewer elements."""

FINITE = "values were taken as finite where the program tests for NaN or infinity"


class Known(NamedTuple):
    """The values of one tensor.

    Attributes:
        values: Host tensor of its shape, or with no dimension for one value everywhere.
        assumed: What has to hold for that, or None.
    """

    values: torch.Tensor
    assumed: str | None


class _Place(NamedTuple):
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class KnownValues:
    """Known values by storage; whoever follows storages calls `forget` at the end of one."""

    def __init__(self) -> None:
        self._of_storage: dict[int, dict[_Place, tuple[int, Known]]] = {}

    def of(self, tensor: torch.Tensor) -> Known | None:
        """What is known of `tensor`, unless it has been written to since."""
        places = self._of_storage.get(tensor.untyped_storage()._cdata)
        if places is None:
            return None
        found = places.get(_place(tensor))
        return found[1] if found is not None and found[0] == _version(tensor) else None

    def remember(self, tensor: torch.Tensor, known: Known) -> None:
        """`known` holds for `tensor` until it or a view of it is written to."""
        version = _version(tensor)
        if version is not None and tensor.numel():
            places = self._of_storage.setdefault(tensor.untyped_storage()._cdata, {})
            places[_place(tensor)] = (version, known)

    def forget(self, storage: int) -> None:
        """The storage with this key has ended."""
        self._of_storage.pop(storage, None)

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """An op of `FOLLOWED` has run: see whether its result is known."""
        if isinstance(output, torch.Tensor) and output.is_meta:
            known = FOLLOWED[func](self, func, args, kwargs, output)
            if known is not None:
                self.remember(output, known)


_Follow = Callable[[KnownValues, Any, tuple[Any, ...], dict[str, Any], torch.Tensor], Known | None]


def _place(tensor: torch.Tensor) -> _Place:
    return _Place(int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))


def _version(tensor: torch.Tensor) -> int | None:
    """Counts writes to the storage through any view; tensors made in inference mode have no count."""
    return None if tensor.is_inference() else tensor._version


def _from_host(
    known: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
) -> Known | None:
    """A copy from the host, or a cast."""
    source = args[1] if func is aten.copy_.default else args[0]
    if source.is_meta:
        return _elementwise(known, aten._to_copy.default, (source,), {"dtype": output.dtype}, output)
    if output.numel() > MOST_ELEMENTS:
        return None
    return Known(source.to(output.dtype).expand(output.shape).clone(), None)


def _computed(
    known: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], everywhere: bool
) -> Known | None:
    """The op on the known values of its operands; `everywhere`: on single values that stand for whole tensors."""
    values, assumed = [], None
    for argument in args:
        if isinstance(argument, torch.Tensor) and argument.is_meta:
            found = known.of(argument)
            if found is None or (everywhere and found.values.dim() and argument.dim()):
                return None
            values.append(found.values if everywhere else found.values.expand(argument.shape))
            assumed = assumed or found.assumed
        else:
            values.append(argument)
    return Known(func(*values, **kwargs), assumed)


def _elementwise(
    known: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
) -> Known | None:
    kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "layout", "pin_memory")}
    found = _computed(known, func, args, kwargs, everywhere=True)
    if found is None and output.numel() <= MOST_ELEMENTS:
        found = _computed(known, func, args, kwargs, everywhere=False)
    return found


def _one_everywhere(known: KnownValues, x: torch.Tensor) -> Known | None:
    found = known.of(x)
    return found if found is not None and not found.values.dim() else None


def _view(
    known: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
) -> Known | None:
    same = _one_everywhere(known, args[0])
    if same is None and output.numel() <= MOST_ELEMENTS:
        # On the host the strides may be others, and a view of the same elements a copy.
        func = aten.reshape.default if func in (aten.view.default, aten._unsafe_view.default) else func
        return _computed(known, func, args, kwargs, everywhere=False)
    return same


def _all_or_any(
    known: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
) -> Known | None:
    same = _one_everywhere(known, args[0])
    if same is None:
        return _summed(known, func, args, kwargs, output)
    return Known(same.values.bool(), same.assumed)


def _same_tensor(
    known: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
) -> Known | None:
    """`x == x` tests for NaN."""
    x, other = args
    if x is other and x.is_floating_point():
        return Known(torch.tensor(func is aten.eq.Tensor), FINITE)
    return _elementwise(known, func, args, kwargs, output)


def _with_number(
    known: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
) -> Known | None:
    """`x == inf` and `x != inf` test for infinity."""
    x, number = args
    if isinstance(number, float) and math.isinf(number) and x.is_floating_point() and known.of(x) is None:
        return Known(torch.tensor(func is aten.ne.Scalar), FINITE)
    return _elementwise(known, func, args, kwargs, output)


def _never(
    known: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
) -> Known | None:
    return Known(torch.tensor(False), FINITE) if args[0].is_floating_point() else None


def _summed(
    known: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
) -> Known | None:
    return _computed(known, func, args, kwargs, everywhere=False) if args[0].numel() <= MOST_ELEMENTS else None


_POINTWISE = (
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.logical_not.default,
    aten.bitwise_not.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.bitwise_and.Tensor,
    aten.bitwise_or.Tensor,
    aten.lt.Scalar,
    aten.le.Scalar,
    aten.gt.Scalar,
    aten.ge.Scalar,
    aten.lt.Tensor,
    aten.le.Tensor,
    aten.gt.Tensor,
    aten.ge.Tensor,
    aten.clone.default,
)
_VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.select.int,
    aten.slice.Tensor,
    aten.transpose.int,
    aten.permute.default,
    aten.t.default,
    aten.alias.default,
    aten.detach.default,
)

FOLLOWED: dict[Any, _Follow] = {
    aten._to_copy.default: _from_host,
    aten.copy_.default: _from_host,
    aten.eq.Tensor: _same_tensor,
    aten.ne.Tensor: _same_tensor,
    aten.eq.Scalar: _with_number,
    aten.ne.Scalar: _with_number,
    aten.isinf.default: _never,
    aten.isnan.default: _never,
    aten.all.default: _all_or_any,
    aten.any.default: _all_or_any,
    aten.all.dim: _all_or_any,
    aten.any.dim: _all_or_any,
    aten._is_all_true.default: _all_or_any,
    aten.sum.default: _summed,
    aten.sum.dim_IntList: _summed,
    aten.prod.default: _summed,
    aten.prod.dim_int: _summed,
    aten.cumsum.default: _summed,
    aten.max.default: _summed,
    aten.min.default: _summed,
    **dict.fromkeys(_POINTWISE, _elementwise),
    **dict.fromkeys(_VIEWS, _view),
}
"""ATen overload to the function that says what is known of its result."""
