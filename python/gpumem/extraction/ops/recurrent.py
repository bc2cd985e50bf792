"""LSTM, GRU and RNN: cuDNN's packed kernels, and the fused cells that PyTorch runs where cuDNN is off or not possible.

The cuDNN path follows `ATen/native/cudnn/RNN.cpp`, except for the sizes of workspace and reserve, which only cuDNN
knows: they have the form of three published readings of cuDNN 7 (`rust/gpumem-vgpu/src/cudnn/rnn.rs`, which answers
with the same) and were not verified with later ones. The other path follows
`ATen/native/RNN.cpp` and `cuda/RNN.cu` and equals the virtual GPU's events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gpumem.extraction.ops.recurrent_cells import run_layers
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries
from gpumem.extraction.target import current_target

aten = torch.ops.aten
_RELU, _TANH, _LSTM, _GRU = range(4)
_CUDNN_DTYPES = (torch.float32, torch.float16, torch.float64)
# Numbers per hidden unit, step, layer and direction that a backward pass needs, outputs left out.
_RESERVED = {_RELU: 1, _TANH: 1, _LSTM: 5, _GRU: 6}
_GATES = {_RELU: 1, _TANH: 1, _LSTM: 4, _GRU: 3}


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
    hx, cx = hidden[0], hidden[1] if mode == _LSTM else None
    weights = list(params)
    if torch.is_autocast_enabled("cuda"):
        lower = torch.get_autocast_dtype("cuda")
        # Autocast flattens all weights anew in 16 bit at each call.
        weights = list(_FlatCast.apply(lower, *weights))
        x, hx = x.to(lower), hx.to(lower)
        cx = None if cx is None else cx.to(lower)
    projection = hx.shape[2] if cx is not None and hx.shape[2] != cx.shape[2] else 0
    size = hx.shape[2] if cx is None else cx.shape[2]
    per_layer = (4 if has_biases else 2) + (1 if projection else 0)
    sizes = [] if batch_sizes is None else batch_sizes.tolist()
    output, hy, cy = aten._cudnn_rnn.default(
        x, weights, per_layer, None, hx, cx, mode, size, projection, num_layers, batch_first, dropout, train,
        bidirectional, sizes, None,
    )[:3]  # fmt: skip
    return (output, hy, cy) if mode == _LSTM else (output, hy)


class _FlatCast(torch.autograd.Function):
    """Weights cast into one flat buffer, of which the results are views."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.dtype = weights[0].dtype
        flat = torch.empty(sum(w.numel() for w in weights), dtype=dtype, device="meta")
        return _views(flat, weights)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *(grad.to(ctx.dtype) for grad in grads))


def _views(flat: torch.Tensor, shapes: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    views, start = [], 0
    for weight in shapes:
        views.append(flat[start : start + weight.numel()].view(weight.shape))
        start += weight.numel()
    return tuple(views)


@chooses("lstm.input")
def lstm(x: Any, hx: Any, params: Any, has_biases: Any, layers: Any, p: Any, train: Any, bi: Any, first: Any) -> Any:
    """`nn.LSTM` on a padded batch."""
    return _run(_LSTM, x, None, tuple(hx), params, has_biases, layers, p, train, bi, first)


@chooses("lstm.data")
def lstm_packed(
    x: Any, sizes: Any, hx: Any, params: Any, has_biases: Any, layers: Any, p: Any, train: Any, bi: Any
) -> Any:
    """`nn.LSTM` on a packed sequence."""
    return _run(_LSTM, x, sizes, tuple(hx), params, has_biases, layers, p, train, bi, False)


def _choose_single_state(name: str, mode: int) -> None:
    def padded(x: Any, hx: Any, params: Any, bias: Any, layers: Any, p: Any, train: Any, bi: Any, first: Any) -> Any:
        return _run(mode, x, None, (hx,), params, bias, layers, p, train, bi, first)

    def packed(x: Any, sizes: Any, hx: Any, params: Any, bias: Any, layers: Any, p: Any, train: Any, bi: Any) -> Any:
        return _run(mode, x, sizes, (hx,), params, bias, layers, p, train, bi, False)

    chooses(f"{name}.input")(padded)
    chooses(f"{name}.data")(packed)


_choose_single_state("gru", _GRU)
_choose_single_state("rnn_tanh", _TANH)
_choose_single_state("rnn_relu", _RELU)


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
    directions = 2 if bidirectional else 1
    rows, batch = _rows_and_batch(x, batch_first, packed_sizes)
    width = (projection or hidden) * directions
    item = x.element_size()
    with Temporaries(rec) as tmp:
        sequence = x.transpose(0, 1) if batch_first and not packed_sizes else x
        tmp.contiguous(sequence)
        tmp.contiguous(hx)
        tmp.contiguous(cx)
        hy = torch.empty(hx.shape, dtype=hx.dtype, device="meta")
        cy = torch.empty(cx.shape if cx is not None else (0,), dtype=hx.dtype, device="meta")
        output = torch.empty((*sequence.shape[:-1], width), dtype=x.dtype, device="meta")
        rec.requested(hy, cy, output)
        tmp.alloc(_workspace_bytes(mode, rows, batch, hidden, layers, bidirectional, weights, item))
        kept = _RESERVED[mode] * layers + layers - 1
        reserve_bytes = rows * kept * hidden * directions * item if train else 0
        reserve = torch.empty(reserve_bytes, dtype=torch.uint8, device="meta")
        rec.requested(reserve)
    rec.count_flops(_flops(rows, weights))
    if batch_first and not packed_sizes:
        output = output.transpose(0, 1)
    # The flat weights are the storage that the first weight is a view of.
    return output, hy, cy, reserve, weights[0].detach()


@handles(aten._cudnn_rnn_flatten_weight.default)
def flatten_again(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Asked for by a copied module's first forward; the weights have been flattened where `.cuda()` does it."""
    weights = args[0]
    return weights[0].detach() if weights[0].is_meta else func(*args, **kwargs)


@handles(aten._cudnn_rnn_backward.default)
def cudnn_rnn_backward(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gradients of input and states, the workspace, then all weight gradients as views of one buffer."""
    x, weights, _, _, hx, cx = args[:6]
    mode, hidden, layers, batch_first, bidirectional = args[10], args[11], args[13], args[14], args[17]
    packed_sizes, needed = args[18], args[21]
    rows, batch = _rows_and_batch(x, batch_first, packed_sizes)
    item = x.element_size()
    workspace_bytes = _workspace_bytes(mode, rows, batch, hidden, layers, bidirectional, weights, item)
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    grad_hx = torch.empty(hx.shape, dtype=hx.dtype, device="meta")
    grad_cx = torch.empty(cx.shape, dtype=cx.dtype, device="meta") if cx is not None else None
    rec.requested(grad_x, grad_hx, grad_cx)
    with Temporaries(rec) as tmp:
        tmp.alloc(workspace_bytes)
    grad_weights: list[torch.Tensor] = []
    if needed[3]:
        flat = torch.empty(sum(w.numel() for w in weights), dtype=x.dtype, device="meta")
        rec.requested(flat)
        with Temporaries(rec) as tmp:
            tmp.alloc(workspace_bytes)
        grad_weights = list(_views(flat, weights))
    rec.count_flops(2 * _flops(rows, weights))
    return grad_x, grad_hx, grad_cx, grad_weights


def _flops(rows: int, weights: Sequence[torch.Tensor]) -> int:
    return 2 * rows * sum(w.numel() for w in weights if w.dim() == 2)


def flatten_weights(module: torch.nn.Module | None, cudnn_rnn: bool) -> torch.Tensor | None:
    """Make the weights views of one new buffer, as `flatten_parameters` does at the end of `.cuda()`.

    Args:
        module: A module whose own parameters have just been moved.
        cudnn_rnn: Whether the target runs recurrent layers on cuDNN.

    Returns:
        The buffer, or None for a module that makes none.
    """
    if not isinstance(module, torch.nn.RNNBase) or not cudnn_rnn or not torch.backends.cudnn.enabled:
        return None
    weights = [w for w in module._flat_weights if isinstance(w, torch.Tensor)]
    if not weights or len({id(w) for w in weights}) != len(weights) or weights[0].dtype not in _CUDNN_DTYPES:
        return None
    flat = torch.empty(sum(w.numel() for w in weights), dtype=weights[0].dtype, device="meta")
    for weight, view in zip(weights, _views(flat, weights), strict=True):
        weight.data = view
    return flat
