"""Cases of `test_parity.py` that are known to differ: what differs, and by which mechanism.

A case listed here must differ in exactly what is listed; when it becomes equal, its entry has to go. What the wide
sweep finds beside these is listed by cause in `benchmarks/results/parity.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

_PEAKS = frozenset({"requested", "allocated", "sequence"})
_ORDER = frozenset({"sequence"})
_BF16 = "train amp-bf16 adamw"

KNOWN: Mapping[tuple[str, str], tuple[frozenset[str], str]] = {
    ("nn:rnn", _BF16): (
        frozenset({"reserved", "sequence"}),
        "nn.RNN with cuDNN off: CUDA frees the summed gates after tanh has its output, the trace before",
    ),
    ("nn:lstm_cell", _BF16): (
        _PEAKS,
        "nn.LSTMCell runs _thnn_fused_lstm_cell on CUDA (a workspace of 4 h per step), the trace its unfused gates",
    ),
    ("nn:mlp", "asgd"): (
        _ORDER,
        "torch.as_tensor(number, device=...) in ASGD's first step makes a 4-byte storage that the trace does not see",
    ),
    ("op:cumprod", _BF16): (
        _PEAKS,
        "cumprod_backward asks whether any input is zero: CUDA reads the answer and takes the short way",
    ),
    ("op:embedding_bag_sum", _BF16): (
        _ORDER,
        "embedding_bag's backward sorts the indices on CUDA (scratch of a few hundred bytes), not recorded",
    ),
    ("op:scatter_reduce_amax", _BF16): (
        _PEAKS,
        "ScatterReduceBackward multiplies the gradient by a mask; the product is one buffer more on CUDA",
    ),
    ("op:trace", _BF16): (
        frozenset({"requested", "sequence"}),
        "trace is diagonal().sum() on CUDA, with its gradient in fp32; the meta kernel keeps the 16-bit type",
    ),
    ("op:var_mean", _BF16): (
        _PEAKS,
        "VarMeanBackward adds the two parts of the gradient out of place on CUDA",
    ),
}
"""`(model, setting)` to what differs (names of `Comparison.off`) and why."""
