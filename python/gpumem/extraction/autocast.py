"""CUDA autocast for meta tensors: Python kernels at autocast's own place in the dispatcher.

C++ autocast ignores tensors that are not on its device. A key that no backend owns (`AutocastIPU`) is switched on for
the tracing thread and gets a kernel for each op of CUDA's lists, read from `ATen/autocast_mode.h` of this torch.
`torch.autocast("cuda")` itself runs unmodified, so nesting, disabled regions and recomputation follow PyTorch.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from gpumem.extraction.environment import InferenceFlag
from gpumem.extraction.installed import cached_casts_have_gradients, inference_mode_caches_casts

_KEY = torch._C.DispatchKey.AutocastIPU  # type: ignore[attr-defined]
_KEY_NAME = "AutocastIPU"
_KEY_SET = torch._C.DispatchKeySet(_KEY)
_is_meta = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]
_MACROS = {
    "LOWER_PRECISION_FP": "lower",
    "FP32": "fp32",
    "FP32_SET_OPT_DTYPE": "fp32_set_opt_dtype",
    "PROMOTE": "promote",
}


def read_policies(header: str) -> dict[str, str]:
    """Op name (`name` or `name.overload`) to policy, from the text of `ATen/autocast_mode.h`."""
    policies: dict[str, str] = {}
    for macro, policy in _MACROS.items():
        match = re.search(rf"#define AT_FORALL_{macro}\(_\)((?:.*\\\n)*.*\n)", header)
        if match is None:
            raise RuntimeError(f"ATen/autocast_mode.h has no list AT_FORALL_{macro}")
        for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", match.group(1)):
            policies[f"{name}.{overload}" if overload else name] = policy
    # norm.Scalar and norm.ScalarOpt_dim append a dtype argument to another overload (AT_FORALL_DIFFERENT_REDISPATCH).
    policies["norm.Scalar"] = policies["norm.ScalarOpt_dim"] = "append_dtype"
    return policies


class CastCache:
    """The 16-bit copies of fp32 leaf weights, kept until the outermost autocast block ends."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def clear(self) -> None:
        """Forget all copies, as `torch.clear_autocast_cache()` does."""
        self._casts.clear()

    def cast(self, tensor: Any, dtype: torch.dtype, lower: torch.dtype) -> Any:
        """`cached_cast` of ATen: to `dtype` if eligible, from the cache when a leaf weight goes to `lower`."""
        if isinstance(tensor, torch.Tensor):
            if not _eligible(tensor) or tensor.dtype == dtype:
                return tensor
            if not (
                dtype == lower
                and tensor.dtype == torch.float32
                and tensor.requires_grad
                and tensor.is_leaf
                and not tensor._is_view()
                and (not InferenceFlag.depth or inference_mode_caches_casts())
                and torch.is_autocast_cache_enabled()
            ):
                return tensor.to(dtype)
            # The entry holds the weight itself, so its id cannot be reused while the entry lives.
            entry = self._casts.get(id(tensor))
            if entry is None:
                with torch.set_grad_enabled(torch.is_grad_enabled() or cached_casts_have_gradients()):
                    entry = self._casts[id(tensor)] = (tensor, tensor.to(dtype))
            return entry[1]
        if isinstance(tensor, (list, tuple)) and tensor and isinstance(tensor[0], torch.Tensor):
            return [self.cast(item, dtype, lower) for item in tensor]
        return tensor


_CASTS = CastCache()
clear_casts = _CASTS.clear


def _eligible(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and _is_meta(tensor)
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
    )


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _cast_all(args: list[Any], kwargs: dict[str, Any], dtype: torch.dtype, lower: torch.dtype) -> list[Any]:
    for name, value in kwargs.items():
        kwargs[name] = _CASTS.cast(value, dtype, lower)
    # gcc evaluates the arguments of the wrapped call from the right: bias, weight, input.
    for index in range(len(args) - 1, -1, -1):
        args[index] = _CASTS.cast(args[index], dtype, lower)
    return args


def _kernel(op: Any, policy: str) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]
    dtype_index = names.index("dtype") if "dtype" in names else None

    def kernel(*call_args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEY_SET), torch._C.DisableTorchFunction():
            args = list(call_args)
            del call_args
            if torch.is_autocast_enabled("cuda"):
                lower = torch.get_autocast_dtype("cuda")
                if policy == "lower":
                    args = _cast_all(args, kwargs, lower, lower)
                elif policy == "fp32":
                    args = _cast_all(args, kwargs, torch.float32, lower)
                elif policy == "fp32_set_opt_dtype":
                    at = dtype_index if dtype_index is not None else len(args)
                    unset = (len(args) <= at or args[at] is None) and kwargs.get("dtype") is None
                    if unset and _eligible(args[0]):
                        args, kwargs = args[:at], {**kwargs, "dtype": torch.float32}
                elif policy == "append_dtype":
                    if _eligible(args[0]):
                        dim = args[2] if len(args) > 2 else []
                        keepdim = args[3] if len(args) > 3 else False
                        return torch.ops.aten.norm.ScalarOpt_dim_dtype(
                            args[0], args[1], dim, keepdim, dtype=torch.float32
                        )
                else:
                    widest = any(_eligible(t) and t.dtype == torch.float32 for t in _tensors([*args, *kwargs.values()]))
                    args = _cast_all(args, kwargs, torch.float32 if widest else lower, lower)
            output = op(*args, **kwargs)
            # C++ destroys the casts first argument first; a Python list would free from its end.
            for index in range(len(args)):
                args[index] = None
            return output

    return kernel


@functools.cache
def _register_kernels() -> list[Any]:
    """Once per process: nobody else owns the key, so the kernels act only where it is switched on."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    # `Library.fallback` exists since torch 2.6; this is what it calls.
    fallthrough: Any = torch._C._dispatch_library("IMPL", "_", _KEY_NAME)
    aten = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fallthrough.fallback_fallthrough()
        for name, policy in read_policies(header.read_text()).items():
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if op is not None:
                aten.impl(name, _kernel(op, policy), _KEY_NAME)
    return [fallthrough, aten]


@contextlib.contextmanager
def autocast_on_meta() -> Iterator[None]:
    """In this thread, `torch.autocast("cuda")` acts on meta tensors."""
    _register_kernels()
    # Measured now: later all modes are on.
    cached_casts_have_gradients()
    inference_mode_caches_casts()
    c: Any = torch._C
    included = c._dispatch_tls_is_dispatch_key_included(_KEY)
    excluded = c._dispatch_tls_is_dispatch_key_excluded(_KEY)
    c._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
    c._dispatch_tls_set_dispatch_key_included(_KEY, True)
    try:
        yield
    finally:
        clear_casts()
        c._dispatch_tls_set_dispatch_key_included(_KEY, included)
        c._dispatch_tls_set_dispatch_key_excluded(_KEY, excluded)
