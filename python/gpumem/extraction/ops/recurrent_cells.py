"""LSTM, GRU and RNN without cuDNN: a fused cell per step, as `ATen/native/RNN.cpp` unrolls them on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder

aten = torch.ops.aten
RELU, TANH, LSTM, GRU = range(4)
"""`cudnnRNNMode_t`."""
# Numbers per hidden unit that the fused GRU cell keeps for backward (the LSTM cell keeps its four gates).
_GRU_WORKSPACE = 5
_State = tuple[torch.Tensor, ...]


@handles(aten._thnn_fused_lstm_cell.default)
def fused_lstm_cell(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gates kept for backward, then hidden and cell state."""
    gates, _, cx = args[:3]
    workspace = torch.empty(gates.shape, dtype=gates.dtype, device="meta")
    rec.requested(workspace)
    hy, cy = torch.empty_like(cx), torch.empty_like(cx)
    rec.requested(hy, cy)
    return hy, cy, workspace


@handles(aten._thnn_fused_lstm_cell_backward_impl.default)
def fused_lstm_cell_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients of the gates (shared by input and hidden part), of the cell state, of the biases."""
    cx, workspace, has_bias = args[2], args[4], args[5]
    grad_gates = torch.empty(workspace.shape, dtype=workspace.dtype, device="meta")
    grad_cx = torch.empty_like(cx)
    rec.requested(grad_gates, grad_cx)
    grad_bias = None
    if has_bias:
        grad_bias = torch.empty(grad_gates.shape[1:], dtype=grad_gates.dtype, device="meta")
        rec.requested(grad_bias)
    return grad_gates, grad_cx, grad_bias


@handles(aten._thnn_fused_gru_cell.default)
def fused_gru_cell(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Five numbers per hidden unit kept for backward, then the hidden state."""
    hx = args[2]
    workspace = torch.empty((hx.shape[0], hx.shape[1] * _GRU_WORKSPACE), dtype=hx.dtype, device="meta")
    rec.requested(workspace)
    hy = torch.empty_like(hx)
    rec.requested(hy)
    return hy, workspace


@handles(aten._thnn_fused_gru_cell_backward.default)
def fused_gru_cell_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients of both kinds of gates, of the hidden state, of the biases."""
    grad, _workspace, has_bias = args[:3]
    rows, hidden = grad.shape
    input_gates = torch.empty((rows, 3 * hidden), dtype=grad.dtype, device="meta")
    hidden_gates = torch.empty((rows, 3 * hidden), dtype=grad.dtype, device="meta")
    grad_hx = torch.empty_like(grad)
    rec.requested(input_gates, hidden_gates, grad_hx)
    biases: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    if has_bias:
        biases = (
            torch.empty((3 * hidden,), dtype=grad.dtype, device="meta"),
            torch.empty((3 * hidden,), dtype=grad.dtype, device="meta"),
        )
        rec.requested(biases)
    return input_gates, hidden_gates, grad_hx, *biases


class _Weights(NamedTuple):
    """The parameters of one cell, or of one layer and direction."""

    w_ih: torch.Tensor
    w_hh: torch.Tensor
    b_ih: torch.Tensor | None
    b_hh: torch.Tensor | None
    w_hr: torch.Tensor | None = None

    @classmethod
    def of_layer(cls, params: Sequence[torch.Tensor], has_biases: bool, has_projection: bool) -> _Weights:
        """From PyTorch's order: weights, biases if any, projection if any."""
        b_ih, b_hh = params[2:4] if has_biases else (None, None)
        return cls(params[0], params[1], b_ih, b_hh, params[-1] if has_projection else None)


def _cell(mode: int, x: torch.Tensor, state: _State, weights: _Weights) -> _State:
    if mode == LSTM:
        input_gates = aten.matmul.default(x, weights.w_ih.t())
        hidden_gates = aten.matmul.default(state[0], weights.w_hh.t())
        made = aten._thnn_fused_lstm_cell.default(input_gates, hidden_gates, state[1], weights.b_ih, weights.b_hh)
        # All three results live until the projection is done.
        return (made[0] if weights.w_hr is None else aten.matmul.default(made[0], weights.w_hr.t())), made[1]
    if mode == GRU:
        input_gates = aten.matmul.default(x, weights.w_ih.t())
        hidden_gates = aten.matmul.default(state[0], weights.w_hh.t())
        return (aten._thnn_fused_gru_cell.default(input_gates, hidden_gates, state[0], weights.b_ih, weights.b_hh)[0],)
    hidden = aten.linear.default(state[0], weights.w_hh, weights.b_hh)
    # A temporary of the C++ expression: it lives until the nonlinearity is done.
    from_input = aten.linear.default(x, weights.w_ih, weights.b_ih)
    hidden.add_(from_input)
    return (torch.tanh(hidden) if mode == TANH else torch.relu(hidden),)


@chooses("lstm_cell")
def lstm_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """`nn.LSTMCell`, a step of a loop in Python."""
    return _cell(LSTM, x, tuple(hx), _Weights(w_ih, w_hh, b_ih, b_hh))


@chooses("gru_cell")
def gru_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """`nn.GRUCell`."""
    return _cell(GRU, x, (hx,), _Weights(w_ih, w_hh, b_ih, b_hh))[0]


def _direction(
    mode: int, steps: Sequence[torch.Tensor], state: _State, weights: _Weights
) -> tuple[list[torch.Tensor], _State]:
    outputs = []
    for x in steps:
        state = _cell(mode, x, state, weights)
        outputs.append(state[0])
    return outputs, state


def _packed_direction(
    mode: int, data: torch.Tensor, sizes: list[int], state: _State, weights: _Weights, reverse: bool
) -> tuple[torch.Tensor, _State]:
    """Steps of a packed sequence: states shrink (or, backwards, grow) with the number of sequences still running."""
    offsets = [sum(sizes[:step]) for step in range(len(sizes))]
    initial = state
    state = tuple(s.narrow(0, 0, sizes[-1 if reverse else 0]) for s in initial)
    finished: list[_State] = []
    outputs = []
    order = range(len(sizes) - 1, -1, -1) if reverse else range(len(sizes))
    for step in order:
        now, before = sizes[step], state[0].shape[0]
        if now < before:
            finished.append(tuple(s.narrow(0, now, before - now) for s in state))
            state = tuple(s.narrow(0, 0, now) for s in state)
        elif now > before:
            added = [i.narrow(0, before, now - before) for i in initial]
            state = tuple(torch.cat([s, more], 0) for s, more in zip(state, added, strict=True))
        state = _cell(mode, data.narrow(0, offsets[step], now), state, weights)
        outputs.append(state[0])
    if reverse:
        return torch.cat(outputs[::-1], 0), state
    output = torch.cat(outputs, 0)
    finished.append(state)
    finished.reverse()
    return output, _last_first(lambda i: torch.cat([part[i] for part in finished], 0), len(state))


def _last_first(make: Callable[[int], torch.Tensor], count: int) -> _State:
    """`make` of each index, from the last to the first: the compiler evaluates arguments in this order."""
    return tuple([make(i) for i in reversed(range(count))][::-1])


def run_layers(
    mode: int,
    x: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    hidden: _State,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """All layers and directions: the output, then the last states of all layers stacked.

    Args:
        mode: cuDNN's number of the cell: 0 ReLU, 1 tanh, 2 LSTM, 3 GRU.
        x: `[steps, batch, features]` (batch first: transposed), or packed data with `batch_sizes`.
        batch_sizes: Sequences per step of a packed sequence (a CPU tensor), or None.
        hidden: Initial states, `[layers x directions, batch, hidden]` each.
        params: Weights in PyTorch's order.
        has_biases: Whether each layer has its two biases.
        num_layers: Layers.
        dropout: Probability between layers.
        train: Whether dropout acts.
        bidirectional: Whether each layer runs both ways.
        batch_first: Whether `x` and the output are `[batch, steps, features]`.
    """
    sizes = None if batch_sizes is None else batch_sizes.tolist()
    layer_input = x.transpose(0, 1) if batch_first and sizes is None else x
    directions = 2 if bidirectional else 1
    has_projection = mode == LSTM and hidden[0].shape[2] != hidden[1].shape[2]
    count = len(params) // (num_layers * directions)
    weights = [
        _Weights.of_layer(params[start : start + count], has_biases, has_projection)
        for start in range(0, len(params), count)
    ]
    states = list(zip(*(h.unbind(0) for h in hidden), strict=True))
    last: list[_State] = []
    for layer in range(num_layers):
        parts = []
        # The outputs of single steps live until the layer returns.
        kept: list[list[torch.Tensor]] = []
        # Both directions share one unbind, so that gradients meet per step.
        steps = [] if sizes is not None else list(layer_input.unbind(0))
        for direction in range(directions):
            at = layer * directions + direction
            if sizes is not None:
                output, state = _packed_direction(mode, layer_input, sizes, states[at], weights[at], direction == 1)
            else:
                outputs, state = _direction(mode, steps[::-1] if direction else steps, states[at], weights[at])
                output = torch.stack(outputs[::-1] if direction else outputs, 0)
                kept.append(outputs)
                del outputs
            parts.append(output)
            last.append(state)
        layer_input = torch.cat(parts, parts[0].dim() - 1) if bidirectional else parts[0]
        del parts, output, steps, kept
        if dropout != 0 and train and layer < num_layers - 1:
            layer_input = aten.dropout.default(layer_input, dropout, True)
    final = _last_first(lambda i: torch.stack([state[i] for state in last], 0), len(hidden))
    return layer_input.transpose(0, 1) if batch_first and sizes is None else layer_input, *final
