"""cuDNN's recurrent kernels, as `ATen/native/cudnn/RNN.cpp` calls them.

cuDNN tells the sizes of workspace, reserve and dropout states on a real card only. The first two have the form of
three published readings of cuDNN 7 (`rust/gpumem-vgpu/src/cudnn/rnn.rs`, which answers with the same), and the report
says that they are guessed. All else equals the virtual GPU's events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpumem.extraction.ops.recurrent_cells import GRU, LSTM, RELU, TANH
from gpumem.extraction.ops.recurrent_weights import flat_buffer, flat_elements, views
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
# Numbers per hidden unit, step, layer and direction that a backward pass needs, outputs left out.
_RESERVED = {RELU: 1, TANH: 1, LSTM: 5, GRU: 6}
_GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}
# A guess, as the virtual device's: cuDNN sizes the states of its random generators by the threads of the card.
_DROPOUT_STATES_BYTES = 1 << 20
_SEED_BYTES = 8
_GUESSED = (
    "LSTM, GRU or RNN on cuDNN: its workspace, what it keeps for backward and its dropout states are guessed, since it "
    "tells their sizes on a real card only"
)


@handles(aten._cudnn_init_dropout_state.default)
def dropout_states(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Random states that all recurrent layers of a process share, from a seed drawn on the device."""
    if torch.device(kwargs["device"]).type != "meta":
        return func(*args, **kwargs)
    if rec.first("cudnn_dropout_states"):
        rec.free(rec.alloc(_SEED_BYTES))
        rec.alloc(_DROPOUT_STATES_BYTES, "workspace")
    return torch.empty(0, dtype=torch.uint8, device="meta")


def _rows_and_batch(x: torch.Tensor, batch_first: bool, packed_sizes: Sequence[int]) -> tuple[int, int]:
    """Time steps times samples, padding left out, and samples."""
    if packed_sizes:
        return x.shape[0], packed_sizes[0]
    return x.shape[0] * x.shape[1], x.shape[0 if batch_first else 1]


def _workspace_bytes(
    mode: int,
    rows: int,
    batch: int,
    hidden: int,
    layers: int,
    bidirectional: bool,
    weights: Sequence[torch.Tensor],
    item: int,
) -> int:
    """The matrices once more, and what is at work for one step; both directions' results if there are two."""
    width = hidden * (2 if bidirectional else 1)
    step = batch * width * layers * (3 * _GATES[mode] - 1)
    both = 2 * rows * width if bidirectional else 0
    return (sum(w.numel() for w in weights if w.dim() == 2) + step + both) * item


@handles(aten._cudnn_rnn.default)
def cudnn_rnn(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Last states, the output, the workspace, and in training the reserve that backward reads."""
    x, weights, _, _, hx, cx, mode, hidden, projection, layers, batch_first = args[:11]
    train, bidirectional, packed_sizes = args[12], args[13], args[14]
    if not x.is_meta:
        return func(*args, **kwargs)
    rec.note(_GUESSED)
    directions = 2 if bidirectional else 1
    rows, batch = _rows_and_batch(x, batch_first, packed_sizes)
    width = (projection or hidden) * directions
    item = x.element_size()
    with Temporaries(rec) as tmp:
        sequence = x.transpose(0, 1) if batch_first and not packed_sizes else x
        tmp.contiguous(sequence)
        output = torch.empty((*sequence.shape[:-1], width), dtype=x.dtype, device="meta")
        hy = torch.empty(hx.shape, dtype=hx.dtype, device="meta")
        cy = torch.empty(cx.shape if cx is not None else (0,), dtype=hx.dtype, device="meta")
        flat = flat_buffer(weights, args[2])
        rec.requested(output, hy, cy, flat)
        tmp.alloc(_workspace_bytes(mode, rows, batch, hidden, layers, bidirectional, weights, item))
        # What each layer keeps, and the outputs of all layers but the last, whose output is the program's.
        kept = _RESERVED[mode] * layers + layers - 1
        reserve_bytes = rows * kept * hidden * directions * item if train else 0
        reserve = torch.empty(reserve_bytes, dtype=torch.uint8, device="meta")
        rec.requested(reserve)
    rec.count_flops(_flops(rows, weights))
    if batch_first and not packed_sizes:
        output = output.transpose(0, 1)
    return output, hy, cy, reserve, flat


@handles(aten._cudnn_rnn_flatten_weight.default)
def flatten_again(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Asked for by a copied module's first forward; the weights have been flattened where `.cuda()` does it."""
    weights = args[0]
    return weights[0].detach() if weights[0].is_meta else func(*args, **kwargs)


@handles(aten._cudnn_rnn_backward.default)
def cudnn_rnn_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Zeros for gradients that are not there, then `_backward_input` and `_backward_weight`."""
    x, weights, per_layer, _, hx, cx, output, grad_output, grad_hy, grad_cy, mode, hidden = args[:12]
    layers, batch_first, bidirectional, packed_sizes, needed = args[13], args[14], args[17], args[18], args[21]
    if not x.is_meta:
        return func(*args, **kwargs)
    rows, batch = _rows_and_batch(x, batch_first, packed_sizes)
    item = x.element_size()
    workspace_bytes = _workspace_bytes(mode, rows, batch, hidden, layers, bidirectional, weights, item)
    swapped = batch_first and not packed_sizes
    sequence = x.transpose(0, 1) if swapped else x
    with Temporaries(rec) as zeros:
        for grad, like in ((grad_output, output), (grad_hy, hx), (grad_cy, cx)):
            if grad is None and like is not None:
                zeros.alloc(like.numel() * like.element_size())
        with Temporaries(rec) as tmp:
            tmp.contiguous(sequence)
            tmp.contiguous(grad_output.transpose(0, 1) if swapped and grad_output is not None else grad_output)
            grad_x = torch.empty(sequence.shape, dtype=x.dtype, device="meta")
            rec.requested(grad_x)
            tmp.contiguous(grad_hy)
            tmp.contiguous(grad_cy)
            grad_hx = torch.empty(hx.shape, dtype=hx.dtype, device="meta")
            grad_cx = torch.empty(cx.shape, dtype=cx.dtype, device="meta") if cx is not None else None
            rec.requested(grad_hx, grad_cx)
            tmp.alloc(workspace_bytes)
        grad_weights = _weight_gradients(rec, sequence, weights, per_layer, workspace_bytes) if needed[3] else []
    rec.count_flops(2 * _flops(rows, weights))
    return grad_x.transpose(0, 1) if swapped else grad_x, grad_hx, grad_cx, grad_weights


def _weight_gradients(
    rec: Recorder, sequence: torch.Tensor, weights: Sequence[torch.Tensor], per_layer: int, workspace_bytes: int
) -> list[torch.Tensor]:
    """Views of one buffer; where it has biases that the program has not, copies of what belongs to weights."""
    elements = flat_elements(weights, per_layer)
    with Temporaries(rec) as tmp:
        tmp.contiguous(sequence)
        flat = torch.empty(elements, dtype=sequence.dtype, device="meta")
        rec.requested(flat)
        tmp.alloc(workspace_bytes)
        if elements == sum(w.numel() for w in weights):
            return list(views(flat, weights))
        copies = [torch.empty(w.shape, dtype=w.dtype, device="meta") for w in weights]
        rec.requested(copies)
    return copies


def _flops(rows: int, weights: Sequence[torch.Tensor]) -> int:
    return 2 * rows * sum(w.numel() for w in weights if w.dim() == 2)
