"""`nn:` recurrent layers, attention layers, nn.Transformer and MLPs, each with a classifier on top."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpumem.extraction.inputs import parse_input
from tests.parity.models.base import LoadedModel

_TOKENS = (64, 128)


class _Recurrent(nn.Module):
    def __init__(
        self,
        kind: Callable[..., nn.RNNBase],
        bidirectional: bool = False,
        batch_first: bool = True,
        layers: int = 2,
        **further: Any,
    ) -> None:
        super().__init__()
        dropout = 0.1 if layers > 1 else 0.0
        self.inner = kind(
            128, 256, layers, batch_first=batch_first, bidirectional=bidirectional, dropout=dropout, **further
        )
        width = self.inner.proj_size or self.inner.hidden_size
        self.head = nn.Linear(2 * width if bidirectional else width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.inner.batch_first:
            return self.head(self.inner(x.transpose(0, 1))[0][-1])
        return self.head(self.inner(x)[0][:, -1])


class _Sentences(nn.Module):
    """A packed sequence through an LSTM, whose last states the head reads, as text classifiers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(128, 256, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = torch.full((x.shape[0],), x.shape[1] - 1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        _, (hidden, _) = self.inner(packed)
        return self.head(torch.cat((hidden[-2], hidden[-1]), 1))


class _EncoderDecoder(nn.Module):
    """States of one GRU begin another, and the outputs of both are used."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(128, 256, batch_first=True)
        self.decoder = nn.GRU(128, 256, batch_first=True)
        self.head = nn.Linear(256, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen, state = self.encoder(x)
        said, _ = self.decoder(x.flip(1), state)
        return self.head((seen + said).mean(1))


class _Cells(nn.Module):
    """A loop over time in Python, as hand-written recurrent models have it."""

    def __init__(self, kind: Callable[..., nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(128, 256)
        self.head = nn.Linear(256, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        hidden = state[0] if isinstance(state, tuple) else state
        return self.head(hidden)


class _Attention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(128, 4, dropout=0.1, batch_first=True)
        self.head = nn.Linear(128, 1000)
        self.need_weights = need_weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x, x, x, need_weights=self.need_weights)[0].mean(1))


class _Transformer(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.inner = nn.Transformer(128, 4, 2, 2, 256, batch_first=batch_first)
        self.head = nn.Linear(128, 1000)
        self.time = 1 if batch_first else 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.time == 1 else x.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(64, device=x.device)
        return self.head(self.inner(x, x, tgt_mask=mask).mean(self.time))


class _Encoder(nn.Module):
    def __init__(self, norm_first: bool, padded: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, norm_first=norm_first, activation="gelu")
        self.inner = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(128, 1000)
        self.padded = padded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device) if self.padded else None
        return self.head(self.inner(x, src_key_padding_mask=mask).mean(1))


def _mlp(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


_BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: _Recurrent(nn.LSTM),
    "lstm_one_layer": lambda: _Recurrent(nn.LSTM, layers=1),
    "lstm_bidirectional": lambda: _Recurrent(nn.LSTM, bidirectional=True),
    "lstm_time_first": lambda: _Recurrent(nn.LSTM, batch_first=False),
    "lstm_no_bias": lambda: _Recurrent(nn.LSTM, bias=False),
    "lstm_projected": lambda: _Recurrent(nn.LSTM, proj_size=64),
    "lstm_packed": _Sentences,
    "gru": lambda: _Recurrent(nn.GRU),
    "gru_encoder_decoder": _EncoderDecoder,
    "gru_bidirectional": lambda: _Recurrent(nn.GRU, bidirectional=True),
    "rnn": lambda: _Recurrent(nn.RNN),
    "rnn_bidirectional": lambda: _Recurrent(nn.RNN, bidirectional=True),
    "lstm_cell": lambda: _Cells(nn.LSTMCell),
    "gru_cell": lambda: _Cells(nn.GRUCell),
    "rnn_cell": lambda: _Cells(nn.RNNCell),
    "attention": lambda: _Attention(need_weights=False),
    "attention_weights": lambda: _Attention(need_weights=True),
    "transformer": lambda: _Transformer(batch_first=True),
    "transformer_time_first": lambda: _Transformer(batch_first=False),
    "encoder": lambda: _Encoder(norm_first=False),
    "encoder_norm_first": lambda: _Encoder(norm_first=True),
    "encoder_padded": lambda: _Encoder(norm_first=False, padded=True),
    "mlp": lambda: _mlp(nn.Linear(8192, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1000)),
    "mlp_norm": lambda: _mlp(
        nn.Linear(8192, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 1000)
    ),
    "mlp_layer_norm": lambda: _mlp(nn.Linear(8192, 512), nn.LayerNorm(512), nn.Tanh(), nn.Linear(512, 10)),
    "linear": lambda: _mlp(nn.Linear(8192, 10)),
}

RECURRENT = tuple(name for name in _BUILDERS if name.startswith(("lstm", "gru", "rnn")) and not name.endswith("cell"))
"""Layers that use cuDNN when it is on: cases run them both ways."""


def names() -> list[str]:
    """All layers."""
    return list(_BUILDERS)


def load(name: str) -> LoadedModel:
    """One layer with its classifier."""
    return LoadedModel(_BUILDERS[name](), parse_input(_TOKENS))
