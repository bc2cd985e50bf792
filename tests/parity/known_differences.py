"""Cases of `test_parity.py` that are known to differ: what differs, and by which mechanism.

A case listed here must differ in exactly what is listed; when it becomes equal, its entry has to go. What the wide
sweep finds beside these is listed by cause in `benchmarks/results/parity.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

_PEAKS = frozenset({"requested", "allocated", "sequence"})
_ORDER = frozenset({"sequence"})
_BF16 = "train amp-bf16 adamw"
_FP32 = "train fp32 sgd(momentum)"

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
    ("op:embedding_bag_max", _BF16): (
        _ORDER,
        "embedding_bag's backward makes its gradient contiguous first on CUDA; the trace has no such copy",
    ),
    ("op:embedding_bag_sum", _FP32): (
        _ORDER,
        "embedding_bag's backward sorts the indices on CUDA: scratch of a few hundred bytes, not recorded",
    ),
    ("op:embedding_max_norm", _BF16): (
        _ORDER,
        "embedding_renorm_ sorts the indices on CUDA to find each row once: scratch, not recorded",
    ),
    ("op:scatter_reduce_amax", _FP32): (
        _PEAKS,
        "ScatterReduceBackward multiplies the gradient by a mask: one buffer more on CUDA",
    ),
    ("op:solve", _FP32): (
        _ORDER,
        "batched LU on CUDA makes arrays of pointers and a flag for the errors, a few hundred bytes, not recorded",
    ),
    ("op:sum_last", _FP32): (
        _PEAKS,
        "an expanded (stride 0) gradient reaches a matrix product: cuBLAS cannot read it, CUDA clones it first",
    ),
}
"""`(model, setting)` to what differs (names of `Comparison.off`) and why."""
