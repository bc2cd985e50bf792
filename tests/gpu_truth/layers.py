"""Factories of small models for `gpumem.sources`: one layer each, which returns its own loss, and its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, Any]


class Alone(nn.Module):
    """One layer and the mean of squares of what it returns.

    Args:
        layer: The layer.
        run: What calls it, for layers that take or return more than a tensor.
    """

    def __init__(self, layer: nn.Module, run: Callable[[nn.Module, torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.layer, self.run = layer, run

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x) if self.run is None else self.run(self.layer, x)
        return {"loss": out.float().pow(2).mean()}


def _first(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = layer(x)[0]
    return result


def _recurrent(kind: Any, **more: Any) -> Callable[[], Made]:
    return lambda: (Alone(kind(256, 512, batch_first=True, **more), _first), (128, 256))


lstm = _recurrent(nn.LSTM)
lstm_two = _recurrent(nn.LSTM, num_layers=2, dropout=0.1)
lstm_bidirectional = _recurrent(nn.LSTM, bidirectional=True)
gru = _recurrent(nn.GRU)
gru_two = _recurrent(nn.GRU, num_layers=2)
rnn_tanh = _recurrent(nn.RNN)


_NORMS: dict[type[nn.Module], Callable[[int], nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.ConvTranspose2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
}


def _convolution(
    inputs: int, outputs: int, size: tuple[int, ...], kernel: int, kind: Any = nn.Conv2d, **more: Any
) -> Callable[[], Made]:
    """A convolution behind a norm, so that its input needs a gradient as inside of a network."""
    more.setdefault("padding", kernel // 2)
    return lambda: (
        Alone(nn.Sequential(_NORMS[kind](inputs), kind(inputs, outputs, kernel, **more))),
        (inputs, *size),
    )


conv_stem = _convolution(3, 64, (224, 224), 7, stride=2)
conv_first = _convolution(64, 64, (56, 56), 3)
conv_second = _convolution(128, 128, (28, 28), 3)
conv_third = _convolution(256, 256, (14, 14), 3)
conv_fourth = _convolution(512, 512, (7, 7), 3)
conv_pointwise = _convolution(256, 64, (56, 56), 1)
conv_depthwise = _convolution(96, 96, (112, 112), 3, groups=96)
conv_grouped = _convolution(256, 256, (28, 28), 3, groups=32)
conv_transposed = _convolution(64, 32, (64, 64), 2, nn.ConvTranspose2d, padding=0, stride=2)
conv_volume = _convolution(32, 32, (32, 32, 32), 3, nn.Conv3d)
conv_signal = _convolution(64, 64, (4096,), 9, nn.Conv1d)
conv_dilated = _convolution(64, 64, (56, 56), 3, padding=2, dilation=2)


def batch_norm() -> Made:
    """Reserve and workspace of cuDNN's spatial persistent mode, where it is chosen."""
    return Alone(nn.Sequential(nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64), nn.ReLU())), (64, 56, 56)


class _Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(768, 3 * 768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 12, 64)).permute(2, 0, 3, 1, 4)
        result: torch.Tensor = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return result


def attention() -> Made:
    """Whichever kernel PyTorch chooses: flash, memory-efficient, cuDNN's."""
    return Alone(_Heads()), (512, 768)


def linear() -> Made:
    """cuBLAS, and cuBLASLt where bias and activation go along."""
    return Alone(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024, bias=False))), (1024,)


class _Ctc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(x).log_softmax(-1).transpose(0, 1)
        batch = x.shape[0]
        targets = torch.ones(batch, 16, dtype=torch.long, device=x.device)
        lengths = torch.full((batch,), x.shape[1], dtype=torch.long), torch.full((batch,), 16, dtype=torch.long)
        return functional.ctc_loss(scores, targets, *lengths)


def ctc() -> Made:
    """Alpha and beta."""
    return Alone(_Ctc()), (128, 64)


class _Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(256, 4096)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.head(x)
        result: torch.Tensor = values.sort(-1).values.cumsum(-1) + values.topk(64, -1).values.sum(-1, keepdim=True)
        return result


def sorted() -> Made:
    """CUB's scratch memory."""
    return Alone(_Sorted()), (256,)


class _Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50_000, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.table(x)
        return result


def embedding() -> Made:
    """The backward pass sorts the indices."""
    return Alone(_Embedded()), ((512,), torch.int64)


class _Matrices(nn.Module):
    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.head, self.run = nn.Linear(128, 128), run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.head(x))


def _cholesky(x: torch.Tensor) -> torch.Tensor:
    # Far enough from singular whatever the weights are.
    result: torch.Tensor = torch.linalg.cholesky(x @ x.mT + 10 * torch.eye(x.shape[-1], device=x.device))
    return result


def _fourier(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.fft.rfft2(x).abs()
    return result


def cholesky() -> Made:
    """cuSOLVER."""
    return Alone(_Matrices(_cholesky)), (128, 128)


def fourier() -> Made:
    """cuFFT."""
    return Alone(_Matrices(_fourier)), (128, 128)


def small_llama() -> Made:
    """Eight layers of a Llama of width 1024."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, vocab_size=32_000
    )
    config.use_cache = False
    ids = ((1024,), torch.int64)
    with torch.device("meta"):
        return LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}
