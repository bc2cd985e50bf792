"""Small models, each with one property that extraction must live with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def mlp() -> nn.Sequential:
    """Eight features in, four classes out."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def convolutional() -> nn.Sequential:
    """Layers with buffers, dropout and a flag for training."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 4),
    )


class After(nn.Module):
    """A linear layer whose output goes through a function."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


class SparseLookup(nn.Module):
    """A functional embedding whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.embedding(x, self.table, sparse=True)


class Lists(nn.Module):
    """Parameters in a ParameterList and a ParameterDict."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ParameterList([nn.Parameter(torch.randn(8, 8)) for _ in range(2)])
        self.named = nn.ParameterDict({"last": nn.Parameter(torch.randn(8, 4))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for matrix in self.matrices:
            x = x @ matrix
        return x @ self.named["last"]  # type: ignore[no-any-return]


class Tied(nn.Module):
    """One weight for the embedding and the output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.output = nn.Linear(8, 10, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.embedding(tokens))  # type: ignore[no-any-return]


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 2


def custom_function() -> nn.Module:
    """An autograd.Function written in Python."""
    return After(_Double.apply)


class Checkpointed(nn.Module):
    """A block that is recomputed in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = nn.Sequential(nn.Linear(8, 64), nn.Dropout(), nn.ReLU(), nn.Linear(64, 8))
        self.last = nn.Linear(8, 4)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=self.reentrant))  # type: ignore[no-any-return]


def shared_buffers() -> nn.Module:
    """Two batch norms with one set of running statistics."""
    first, second = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
    second.running_mean, second.running_var = first.running_mean, first.running_var
    return nn.Sequential(nn.Linear(8, 8), first, second, nn.Linear(8, 4))


def uncopyable() -> nn.Module:
    """Attributes that copy.deepcopy refuses."""
    model = mlp()
    model.lock = threading.Lock()  # type: ignore[assignment]
    model.numbers = (n for n in range(3))  # type: ignore[assignment]
    return model


def used_weight_norm() -> nn.Module:
    """The old weight_norm after a step: its weight is the result of a computation, kept as an attribute."""
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 4)))
    model(torch.randn(2, 8)).sum().backward()
    return model


class Remembers(nn.Module):
    """Keeps its last output in a list, as models do that visualise attention."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(x)
        self.seen = [output]
        return output


def used_memory() -> nn.Module:
    """A model that still holds the result of its last forward pass."""
    model = Remembers()
    model(torch.randn(2, 8))
    return model


class CudaCaller(nn.Module):
    """Talks to torch.cuda in its forward pass and makes tensors there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.get_device_properties(0).major >= 7
        with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
            shift = torch.ones(4).cuda() + torch.zeros(4, device="cuda")
        assert x.is_cuda
        assert x.device.type == "cuda"
        return self.linear(x) + shift  # type: ignore[no-any-return]


class PadsToEight(nn.Module):
    """Pads the batch to a multiple of 8, as tensor cores like it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        return self.linear(functional.pad(x, (0, 0, 0, -batch % 8)))[:batch]  # type: ignore[no-any-return]


class InChunks(nn.Module):
    """As many calls as the batch has pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.linear(part) for part in x.split(2)])


class Contrastive(nn.Module):
    """A loss over all pairs of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.linear(x)
        return {"loss": functional.cross_entropy(features @ features.T, torch.arange(len(x), device=x.device))}


class WiderFrom(nn.Module):
    """Keeps more from a batch size on that no default trace reaches."""

    def __init__(self, batch: int = 100) -> None:
        super().__init__()
        self.batch = batch
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return torch.cat([y] * 8, 1) if len(x) >= self.batch else y
