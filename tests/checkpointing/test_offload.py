"""What regions save waits elsewhere: gradients are the same, each storage is sent once, weights stay."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from gpumem.checkpointing import apply_regions, offload

LEAST_BYTES = 64


class _Host:
    """Stands for the host's memory: what was sent, and how often each came back."""

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []
        self.returned = 0

    def to_host(self, flat: torch.Tensor) -> torch.Tensor:
        self.sent.append(flat.clone())
        return self.sent[-1]

    def to_device(self, host: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.returned += 1
        return host.clone()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> _Host:
    """Tensors on the CPU are taken for tensors on a GPU."""
    host = _Host()
    monkeypatch.setattr(offload, "to_host", host.to_host)
    monkeypatch.setattr(offload, "to_device", host.to_device)
    monkeypatch.setattr(offload, "is_on_device", lambda tensor: tensor.untyped_storage().nbytes() >= LEAST_BYTES)
    return host


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 48), nn.Dropout(0.3)]
        self.inner = nn.Sequential(*layers)
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Views of one storage, as queries, keys and values are.
        q, k, v = self.inner(x).chunk(3, dim=-1)
        out: torch.Tensor = self.head(torch.nn.functional.scaled_dot_product_attention(q, k, v))
        return out


def _gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model(x).square().sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("regions", [("inner",), ("",), ("inner[0:2]", "head")])
def test_gradients_are_equal_bit_by_bit(host: _Host, regions: tuple[str, ...]) -> None:
    plain = _Net()
    model = copy.deepcopy(plain)
    x = torch.randn(4, 8, 16)
    apply_regions(model, dict.fromkeys(regions, "offload"))
    for expected, found in zip(_gradients(plain, x), _gradients(model, x), strict=True):
        assert torch.equal(expected, found)
    assert host.sent


def test_each_storage_is_sent_once_and_weights_stay(host: _Host) -> None:
    model = _Net()
    apply_regions(model, {"": "offload"})
    _gradients(model, torch.randn(3, 7, 16))
    weights = {parameter.numel() for parameter in model.parameters() if parameter.dim() > 1}
    assert not weights & {sent.numel() for sent in host.sent}
    # The input of the first layer, its output after the ReLU, and others that are saved twice or in views.
    assert host.returned == len(host.sent)
    assert len({(sent.numel(), float(sent.double().sum())) for sent in host.sent}) == len(host.sent)


def test_a_storage_that_was_written_to_is_sent_again(host: _Host) -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.exp()
            with torch.no_grad():
                saved = y.sin()
            z = y * saved
            with torch.no_grad():
                saved.mul_(2)
            return z * saved

    x = torch.randn(32, dtype=torch.float64, requires_grad=True)
    model = Twice()
    expected = x.exp().sin() * 2
    apply_regions(model, {"": "offload"})
    model(x).sum().backward()
    y = x.detach().exp()
    assert x.grad is not None
    # Each product sees what its factor was then: d(y * s * 2s)/dy = 2 s s, times dy/dx = y.
    assert torch.allclose(x.grad, y * y.sin() * expected.detach())


def test_small_tensors_and_those_of_the_host_stay() -> None:
    assert not offload.is_on_device(torch.zeros(offload.LEAST_BYTES))


def test_snippet_does_the_same(host: _Host) -> None:
    from gpumem.checkpointing import code

    text = code({"inner": "offload", "head": "checkpoint"})
    assert "offload_region(model.get_submodule(path))" in text
    plain = _Net()
    model: Any = copy.deepcopy(plain)
    exec(compile(text, "snippet", "exec"), {"model": model})
    x = torch.randn(4, 8, 16)
    for expected, found in zip(_gradients(plain, x), _gradients(model, x), strict=True):
        assert torch.equal(expected, found)
