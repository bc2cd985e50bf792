"""A selection of the operations of `tests/virtual/ops.py`: what once ended the process, and one of each library."""

from __future__ import annotations

from pathlib import Path

from tests.virtual import ops

NAMES = (
    # Kernels that NVRTC compiles; it ended the process.
    "more:complex_network",
    "more:jiterator",
    "more:jiterator_that_does_not_compile",
    # Written by the library on the host.
    "more:linear_algebra_batched",
    "more:fft_half_of_an_odd_size",
    "more:sparse_products",
    "more:float8_product",
    "more:attention_cudnn_attention",
    "more:graph_of_fft",
    "more:graph_with_a_read",
    "more:profiler",
    "more:to_another_process",
)
ERRORS = {
    "more:jiterator_that_does_not_compile": "RuntimeError",
    "more:fft_half_of_an_odd_size": "cuFFT only supports dimensions whose sizes are powers of two",
    "more:graph_with_a_read": "operation not permitted when stream is capturing",
    "more:sparse_products": "not implemented for Strided + SparseBsc @ Strided",
}


def test_operations_run_through_or_say_why_not(programs: Path, tmp_path: Path) -> None:
    log = tmp_path / "ops.jsonl"
    ops.run(log, gpu="h100", samples=1, names=NAMES)
    found = {outcome.name: outcome for outcome in ops.outcomes(log)}
    assert set(found) == set(NAMES)
    for name, outcome in found.items():
        if name in ERRORS:
            assert outcome.state == "error"
            assert ERRORS[name] in outcome.message
        else:
            assert outcome.state == "ok", outcome


def test_a_crash_is_noted_and_the_rest_goes_on(programs: Path, tmp_path: Path) -> None:
    log = tmp_path / "ops.jsonl"
    ops.run(log, gpu="h100", samples=1, names=("more:ends_the_process", "more:marks"))
    assert [(outcome.name, outcome.state, outcome.message) for outcome in ops.outcomes(log)] == [
        ("more:ends_the_process", "crash", "signal 11"),
        ("more:marks", "ok", ""),
    ]
