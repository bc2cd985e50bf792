"""LSTM, GRU and RNN: on cuDNN, or on the fused cells that PyTorch runs where cuDNN is off or not possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpumem.extraction.ops.recurrent_cells import GRU, LSTM, RELU, TANH, run_layers
from gpumem.extraction.ops.recurrent_weights import cast_flat
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries
from gpumem.extraction.target import current_target

aten = torch.ops.aten
_CUDNN_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _cudnn_acceptable(x: torch.Tensor) -> bool:
    return current_target().cudnn_rnn and torch.backends.cudnn.enabled and x.dtype in _CUDNN_DTYPES


def _run(
    mode: int,
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    hidden: tuple[torch.Tensor, ...],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    if not _cudnn_acceptable(x):
        return run_layers(
            mode, x, batch_sizes, hidden, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )
    hx, cx = hidden[0], hidden[1] if mode == LSTM else None
    projection = hx.shape[2] if cx is not None and hx.shape[2] != cx.shape[2] else 0
    size = hx.shape[2] if cx is None else cx.shape[2]
    per_layer = (4 if has_biases else 2) + (1 if projection else 0)
    weights = list(params)
    states = None
    if train and dropout > 0:
        states = aten._cudnn_init_dropout_state.default(dropout, train, 0, dtype=torch.uint8, device=x.device)
    if torch.is_autocast_enabled("cuda"):
        # All weights anew at each call, and float16 also where autocast's own type is bfloat16.
        weights = cast_flat(weights, per_layer, torch.float16)
        # The compiler evaluates the arguments of the call from the last to the first.
        cx = None if cx is None else cx.to(torch.float16)
        hx, x = hx.to(torch.float16), x.to(torch.float16)
    sizes = [] if batch_sizes is None else batch_sizes.tolist()
    output, hy, cy = aten._cudnn_rnn.default(
        x, weights, per_layer, None, hx, cx, mode, size, projection, num_layers, batch_first, dropout, train,
        bidirectional, sizes, states,
    )[:3]  # fmt: skip
    return (output, hy, cy) if mode == LSTM else (output, hy)


@chooses("lstm.input")
def lstm(x: Any, hx: Any, params: Any, has_biases: Any, layers: Any, p: Any, train: Any, bi: Any, first: Any) -> Any:
    """`nn.LSTM` on a padded batch."""
    return _run(LSTM, x, None, tuple(hx), params, has_biases, layers, p, train, bi, first)


@chooses("lstm.data")
def lstm_packed(
    x: Any, sizes: Any, hx: Any, params: Any, has_biases: Any, layers: Any, p: Any, train: Any, bi: Any
) -> Any:
    """`nn.LSTM` on a packed sequence."""
    return _run(LSTM, x, sizes, tuple(hx), params, has_biases, layers, p, train, bi, False)


def _choose_single_state(name: str, mode: int) -> None:
    def padded(x: Any, hx: Any, params: Any, bias: Any, layers: Any, p: Any, train: Any, bi: Any, first: Any) -> Any:
        return _run(mode, x, None, (hx,), params, bias, layers, p, train, bi, first)

    def packed(x: Any, sizes: Any, hx: Any, params: Any, bias: Any, layers: Any, p: Any, train: Any, bi: Any) -> Any:
        return _run(mode, x, sizes, (hx,), params, bias, layers, p, train, bi, False)

    chooses(f"{name}.input")(padded)
    chooses(f"{name}.data")(packed)


_choose_single_state("gru", GRU)
_choose_single_state("rnn_tanh", TANH)
_choose_single_state("rnn_relu", RELU)


@handles(aten._pack_padded_sequence.default)
def pack(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A contiguous copy of the steps between two lengths each, then all of them in one (`PackedSequence.cpp`)."""
    x, lengths, batch_first = args
    output = func(*args, **kwargs)
    if not x.is_meta:
        return output
    steps = x.transpose(0, 1) if batch_first else x
    with Temporaries(rec) as tmp:
        begin, running = 0, lengths.tolist()
        while running:
            end = running[-1]
            tmp.contiguous(steps[begin:end, : len(running)])
            begin, running = end, [length for length in running if length > end]
        rec.requested(output[0])
    return output
