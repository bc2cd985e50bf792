"""`misc:` what real code does besides stacking layers: ties, frozen parts, LoRA, control flow, devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as f
from torch.utils._python_dispatch import TorchDispatchMode

from gpumem.extraction.inputs import TensorSpec, parse_input
from tests.parity.models.base import LoadedModel

_ROW = (128,)
_TOKENS = (64, 128)


class _Swish(torch.autograd.Function):
    """Saves its input only and recomputes the sigmoid in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


class _StraightThrough(torch.autograd.Function):
    """Rounds in forward, passes the gradient on in backward; saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def _body(width: int = 256) -> nn.Sequential:
    return nn.Sequential(nn.Linear(128, width), nn.ReLU(inplace=True), nn.Linear(width, 128))


class _Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = _body()
        self.head = nn.Linear(128, 100)


class CustomFunction(_Base):
    """Two custom autograd functions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(_StraightThrough.apply(_Swish.apply(self.body(x))))


class TiedWeights(nn.Module):
    """Output layer shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 128)
        self.body = _body()
        self.head = nn.Linear(128, 500, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(ids)))


class FrozenBody(_Base):
    """Only the head is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class FrozenMiddle(nn.Module):
    """A frozen layer between trained ones: its weight gets no gradient, its input does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(128, 128), nn.Linear(128, 128), nn.Linear(128, 100)
        self.middle.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.first(x).relu()).relu())


class InPlace(_Base):
    """In-place ops on activations and on a view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        y.mul_(2).add_(x)
        y[:, :4].zero_()
        y += 1
        return self.head(y)


class ShapeFlow(_Base):
    """Python control flow on shapes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(x.shape[-1] // 64):
            x = self.body(x)
        if x.shape[1] > 32:
            x = x[:, ::2]
        return self.head(x.mean(1))


class TwoInputs(_Base):
    """Two positional inputs of different shape."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x) + y.mean(1))


class DictInput(_Base):
    """A dict as the single argument's fields, with an optional flag that is no tensor."""

    def forward(self, image: torch.Tensor, ids: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        return {"logits": self.head(self.body(image) * scale + ids.unsqueeze(-1))}


class TupleOutput(_Base):
    """Returns (logits, features)."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(x)
        return self.head(features), features


@dataclasses.dataclass
class _Outputs:
    logits: torch.Tensor
    features: list[torch.Tensor]


class DataclassOutput(_Base):
    """Returns a dataclass."""

    def forward(self, x: torch.Tensor) -> _Outputs:
        features = self.body(x)
        return _Outputs(self.head(features), [features, x])


class DeviceArguments(_Base):
    """Makes tensors with `device="cuda"` and with a torch.device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        position = torch.arange(x.shape[-1], device="cuda") / 100
        noise = torch.randn(x.shape, device=torch.device("cuda:0"))
        return self.head(self.body(x + position) + noise.to(x.dtype))


class CudaCalls(_Base):
    """Makes a host tensor and calls `.cuda()` on it; asks `is_cuda` and compares devices."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.ones(128).cuda()
        if x.is_cuda and x.device == scale.device and x.device.type == "cuda":
            x = x * scale
        return self.head(self.body(x).to("cuda", non_blocking=True))


class DefaultDevice(_Base):
    """Makes tensors under `with torch.device("cuda")`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.device("cuda"):
            shift = torch.zeros(128)
        return self.head(self.body(x) + shift)


class Checkpointed(nn.Module):
    """Three blocks under torch.utils.checkpoint."""

    def __init__(self, reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(128, 128)
        self.blocks = nn.ModuleList(nn.Sequential(*_body(), nn.Dropout(dropout)) for _ in range(3))
        self.head = nn.Linear(128, 100)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class NestedCheckpoints(nn.Module):
    """Checkpoints inside checkpoints, with a custom function in the inner ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(128, 128)
        self.blocks = nn.ModuleList(_body() for _ in range(4))
        self.head = nn.Linear(128, 100)

    def _inner(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return _Swish.apply(x + block(x))

    def _outer(self, first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for block in (first, second):
            x = torch.utils.checkpoint.checkpoint(self._inner, block, x, use_reentrant=False)
        return torch.relu(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for at in (0, 2):
            pair = self.blocks[at], self.blocks[at + 1]
            x = torch.utils.checkpoint.checkpoint(self._outer, *pair, x, use_reentrant=False)
        return self.head(x)


class Buffers(_Base):
    """Updates a buffer in forward (a running mean), and keeps a cache in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(128))
        self.cache: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean: Any = self.mean
        with torch.no_grad():
            mean.lerp_(x.float().mean((0, 1)), 0.1)
        if self.cache is None or self.cache.shape != x.shape[1:]:
            self.cache = torch.zeros(x.shape[1:], device=x.device)
        return self.head(self.body(x - mean.to(x.dtype)) + self.cache.to(x.dtype)).mean(1)


class NoGradTeacher(_Base):
    """A second network under no_grad, as in distillation and momentum encoders."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = _body()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = self.teacher(x)
        return f.mse_loss(self.body(x), wanted) + self.head(x).square().mean()


class Autocast(_Base):
    """Opens its own autocast regions, one of them disabled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = self.body(x)
        with torch.autocast("cuda", enabled=False):
            y = y.float() @ y.float().transpose(1, 2)
        return self.head(y @ x.to(y.dtype)).mean(1)


class _Watching(TorchDispatchMode):
    """A mode of the program that changes nothing; while it is active, C++ counts every tensor as subclass-like."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class UnderMode(_Base):
    """A bias added to a product of a transposed input: out of place under a mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x).transpose(0, 1)
        with _Watching():  # type: ignore[no-untyped-call]
            z = self.head(y)
        return z.transpose(0, 1) + self.head(y).transpose(0, 1)


class Hooks(_Base):
    """Forward hooks, a gradient hook on an activation and `retain_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.body[0].register_forward_hook(lambda module, args, output: output * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        if y.requires_grad:
            y.retain_grad()
            y.register_hook(lambda grad: grad * 0.5)
        return self.head(y)


class SharedModule(_Base):
    """One block used several times (weight sharing as in ALBERT)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x + self.body(x)
        return self.head(x)


class UnusedParameters(_Base):
    """Some parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(128, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class MixedDtypes(_Base):
    """An fp32 island and a bf16 buffer in the same net."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(64, 128, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table: Any = self.table
        return self.head(self.body(x + table.to(x.dtype)).float().to(x.dtype)).mean(1)


def _lora() -> nn.Module:
    """LoRA on two linear layers of a small net, through peft."""
    import peft

    base = nn.Sequential(*_body(), nn.Linear(128, 100))
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["0", "2"])
    adapted: nn.Module = peft.get_peft_model(base, config)
    return adapted


_IDS = TensorSpec((32,), torch.int64)
_BUILDERS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "custom_function": (CustomFunction, _ROW),
    "tied_weights": (TiedWeights, _IDS),
    "frozen_body": (FrozenBody, _ROW),
    "frozen_middle": (FrozenMiddle, _ROW),
    "in_place": (InPlace, _ROW),
    "shape_flow": (ShapeFlow, _TOKENS),
    "two_inputs": (TwoInputs, [_ROW, _TOKENS]),
    "dict_input": (DictInput, {"image": _ROW, "ids": TensorSpec((), torch.int64), "scale": 0.5}),
    "tuple_output": (TupleOutput, _ROW),
    "dataclass_output": (DataclassOutput, _ROW),
    "device_arguments": (DeviceArguments, _ROW),
    "cuda_calls": (CudaCalls, _ROW),
    "default_device": (DefaultDevice, _ROW),
    "checkpoint": (lambda: Checkpointed(reentrant=False), _ROW),
    "checkpoint_reentrant": (lambda: Checkpointed(reentrant=True), _ROW),
    "checkpoint_dropout": (lambda: Checkpointed(reentrant=False, dropout=0.1), _ROW),
    "checkpoint_nested": (NestedCheckpoints, _ROW),
    "buffers": (Buffers, _TOKENS),
    "no_grad_teacher": (NoGradTeacher, _ROW),
    "autocast_regions": (Autocast, _TOKENS),
    "under_mode": (UnderMode, _TOKENS),
    "hooks": (Hooks, _ROW),
    "shared_module": (SharedModule, _ROW),
    "unused_parameters": (UnusedParameters, _ROW),
    "mixed_dtypes": (MixedDtypes, _TOKENS),
    "lora": (_lora, _ROW),
}


def names() -> list[str]:
    """All nets."""
    return list(_BUILDERS)


def load(name: str) -> LoadedModel:
    """One net."""
    build, inputs = _BUILDERS[name]
    return LoadedModel(build(), parse_input(inputs))
