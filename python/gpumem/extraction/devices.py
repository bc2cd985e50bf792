"""Makes meta tensors answer as CUDA tensors at the Python level, and sends `device="cuda"` to meta."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

META = torch.device("meta")
CUDA = torch.device("cuda", 0)
_Answer = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
_is_meta = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]
_CUDA_TYPE_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}


def is_cuda_device(device: Any) -> bool:
    """Whether a `device=` argument names CUDA (a bare integer is a CUDA ordinal)."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def _device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = func(*args)
    return CUDA if device.type == "meta" else device


def _is_cuda(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _is_meta(args[0])


def _false(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return False


def _first(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]


def _ordinal(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return 0 if _is_meta(args[0]) else func(*args, **kwargs)


def _cuda(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    memory_format = kwargs.get("memory_format", torch.preserve_format)
    return torch.Tensor.to(args[0], META, memory_format=memory_format)


def _to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) > 1:
        target = args[1]
        if isinstance(target, torch.Tensor):
            if _is_meta(target):
                return func(args[0], META, target.dtype, *args[2:], **kwargs)
        elif is_cuda_device(target):
            args = (args[0], META, *args[2:])
    if is_cuda_device(kwargs.get("device")):
        kwargs = {**kwargs, "device": META}
    return func(*args, **kwargs)


def _type(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs and _is_meta(args[0]):
        return f"torch.cuda.{_CUDA_TYPE_NAMES.get(args[0].dtype, 'Byte')}Tensor"
    if len(args) > 1 and isinstance(args[1], str) and args[1].startswith("torch.cuda."):
        names = {f"torch.cuda.{name}Tensor": dtype for dtype, name in _CUDA_TYPE_NAMES.items()}
        return args[0].to(META, names[args[1]])
    return func(*args, **kwargs)


def _on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Only after `.cpu()`-like reads, which have been noted where they happened.
    if _is_meta(args[0]):
        return func(args[0].cpu(), *args[1:], **kwargs)
    return func(*args, **kwargs)


def _setitem(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, index, value = args
    indices = index if isinstance(index, tuple) else (index,)
    if (
        _is_meta(tensor)
        and isinstance(value, (int, float, bool))
        and not any(isinstance(i, torch.Tensor) for i in indices)
    ):
        # CUDA fills the view; the meta path would make a scalar tensor first.
        tensor[index].fill_(value)
        return None
    if _is_meta(tensor) and isinstance(value, (int, float, bool)) and _is_mask(index):
        # One number under a mask is a masked_fill that needs no scalar on the device.
        mask = indices[0]
        tensor.masked_fill_(mask.reshape(*mask.shape, *[1] * (tensor.dim() - mask.dim())), value)
        return None
    return func(*args)


def _is_mask(index: Any) -> bool:
    if isinstance(index, tuple):
        return len(index) == 1 and _is_mask(index[0])
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool and index.dim() > 0


def _tensor(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Optimizers name the device of C++'s groups, which is meta.
    if not is_cuda_device(kwargs.get("device")) and kwargs.get("device") != META:
        return func(*args, **kwargs)
    if isinstance(args[0], torch.Tensor):
        return func(*args, **{**kwargs, "device": META})
    # Values of the host: a tensor made there and copied. On meta it would come into being without a dispatched op.
    rest = {name: value for name, value in kwargs.items() if name not in ("device", "requires_grad", "pin_memory")}
    copy = torch.tensor(*args, **rest).to(META)
    return copy.requires_grad_() if kwargs.get("requires_grad") else copy


def _new_tensor(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    like, values = args
    device = kwargs.get("device")
    if isinstance(values, torch.Tensor) or not (_is_meta(like) if device is None else is_cuda_device(device)):
        return func(*args, **kwargs)
    dtype = kwargs.get("dtype")
    copy = torch.tensor(values, dtype=like.dtype if dtype is None else dtype).to(META)
    return copy.requires_grad_() if kwargs.get("requires_grad") else copy


_Tensor: Any = torch.Tensor
_ANSWERS: dict[Any, _Answer] = {
    _Tensor.device.__get__: _device,
    _Tensor.is_cuda.__get__: _is_cuda,
    _Tensor.is_meta.__get__: _false,
    _Tensor.get_device: _ordinal,
    _Tensor.cuda: _cuda,
    _Tensor.to: _to,
    _Tensor.type: _type,
    _Tensor.numpy: _on_host,
    _Tensor.tolist: _on_host,
    _Tensor.__array__: _on_host,
    _Tensor.__setitem__: _setitem,
    _Tensor.pin_memory: _first,
    _Tensor.is_pinned: _false,
    _Tensor.new_tensor: _new_tensor,
    torch.tensor: _tensor,
    torch.as_tensor: _tensor,
}


class CudaDevices(TorchFunctionMode):
    """While active in this thread, meta tensors say that they are on `cuda:0`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(func, args, kwargs or {})
        if not kwargs:
            return func(*args)
        if "device" in kwargs and is_cuda_device(kwargs["device"]):
            kwargs = {**kwargs, "device": META}
        return func(*args, **kwargs)


@contextlib.contextmanager
def devices_seen_again() -> Iterator[None]:
    """`CudaDevices`, where PyTorch has set it aside: below a function that the mode handles, such as `backward()`.

    PyTorch calls Python again from there: gradient hooks, saved-tensor hooks, custom functions, recomputed forwards.
    """
    aside = not any(isinstance(mode, CudaDevices) for mode in _get_current_function_mode_stack())
    with torch._C._EnableTorchFunction(), CudaDevices() if aside else contextlib.nullcontext():
        yield


class SeeingDevices:
    """A function that is called with `devices_seen_again`; what else it carries is asked of itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        with devices_seen_again():
            return self._function(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)
