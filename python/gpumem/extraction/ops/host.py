"""Reads of values by the host. Where a trace does not know them, zeros are returned and noted, or it is refused."""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.assertions import asserted_value
from gpumem.extraction.host_reads import where
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder

aten = torch.ops.aten


@handles(aten._local_scalar_dense.default)
def local_scalar_dense(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`.item()`, `bool(t)`, `int(t)`."""
    tensor = args[0]
    if not tensor.is_meta:
        return func(*args)
    known = rec.known_values(tensor)
    if known is not None:
        return known.item()
    asserted = asserted_value()
    if asserted is None:
        rec.host_read("aten::_local_scalar_dense")
    else:
        rec.note(f"a check of values was taken to pass ({where()})")
    if tensor.dtype == torch.bool:
        return bool(asserted)
    return 0.0 if tensor.is_floating_point() else 0


@handles(aten._to_copy.default)
def to_copy(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`.to(...)`; a copy to the host is a read of values."""
    device = kwargs.get("device")
    if args[0].is_meta and device is not None and torch.device(device).type == "cpu":
        known = rec.known_values(args[0])
        if known is not None:
            return known.to(kwargs.get("dtype") or args[0].dtype, copy=True)
        rec.host_read("aten::_to_copy")
        return torch.zeros(tuple(args[0].shape), dtype=kwargs.get("dtype") or args[0].dtype)
    return func(*args, **kwargs)


@handles(aten.copy_.default)
def copy_(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In-place copy; from the device into a host tensor it is a read of values."""
    if not args[0].is_meta and args[1].is_meta:
        known = rec.known_values(args[1])
        if known is not None:
            return args[0].copy_(known)
        rec.host_read("aten::copy_")
        return args[0].zero_()
    return func(*args, **kwargs)


@handles(aten.rand.default)
def rand(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A single number on the host, which is compared with a threshold: see `host_draws.py`."""
    device = kwargs.get("device")
    if math.prod(args[0]) != 1 or (device is not None and torch.device(device).type != "cpu"):
        return func(*args, **kwargs)
    return torch.full(args[0], rec.host_draw(), dtype=kwargs.get("dtype"))


@handles(aten.equal.default)
def equal(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.equal`: tensors of one shape are taken to differ."""
    if not args[0].is_meta:
        return func(*args, **kwargs)
    if args[0].shape == args[1].shape:
        rec.host_read("aten::equal")
    return False


@handles(aten.bincount.default)
def bincount(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The number of bins is data, unless all values are below `minlength`."""
    values = args[0]
    if not values.is_meta:
        return func(*args, **kwargs)
    rec.host_read("aten::bincount")
    bins = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    return torch.empty(max(1, bins), dtype=torch.int64 if weights is None else weights.dtype, device="meta")


@handles(aten.repeat_interleave.Tensor)
def repeat_interleave(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The length is the sum of the repeats: data, unless `output_size` states it."""
    repeats = args[0]
    if not repeats.is_meta:
        return func(*args, **kwargs)
    size = kwargs.get("output_size")
    if size is None:
        rec.host_read("aten::repeat_interleave")
        size = 0
    return torch.empty(size, dtype=torch.int64, device="meta")
