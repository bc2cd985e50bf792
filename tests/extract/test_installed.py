"""What a trace does with versions of torch that are not installed: the switches, one by one.

The bytes themselves were compared with each version on the virtual GPU (`benchmarks/results/versions.md`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import gpumem
from gpumem.extraction import installed
from gpumem.extraction.installed import LtBuffer

MIB = 1 << 20
LT_BYTES = MIB
CUBLAS_BYTES = 8_519_680
Events = list[tuple[str, int]]


@pytest.fixture
def with_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Pretend that another torch is installed."""

    def pretend(version: str) -> None:
        major, minor = map(int, version.split("."))
        monkeypatch.setattr(installed, "torch_version", lambda: (major, minor))

    return pretend


def _workspaces(model: nn.Module, shape: tuple[int, ...]) -> Events:
    """Requests of cuBLAS's and cuBLASLt's sizes in the first step of inference, and their ends."""
    spec = gpumem.extract(model, shape, mode="infer")
    sizes: dict[int, int] = {}
    events: Events = []
    steps = 0
    for kind, number, nbytes, *_ in spec.timeline(4, gpu="rtx3090"):
        steps += kind == 2
        if kind == 0 and nbytes in (LT_BYTES, CUBLAS_BYTES):
            sizes[number] = nbytes
            events.append(("request", nbytes))
        elif kind == 1 and number in sizes:
            events.append(("end", sizes[number]))
    return events


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.6", [("request", LT_BYTES), ("request", CUBLAS_BYTES), ("end", LT_BYTES)]),
        ("2.8", [("request", LT_BYTES), ("request", CUBLAS_BYTES), ("end", LT_BYTES)]),
        ("2.9", [("request", CUBLAS_BYTES), ("request", LT_BYTES)]),
        ("2.11", [("request", CUBLAS_BYTES), ("request", LT_BYTES)]),
        ("2.12", [("request", CUBLAS_BYTES)]),
        ("2.14", [("request", CUBLAS_BYTES)]),
        ("2.15", [("request", LT_BYTES), ("end", LT_BYTES)]),
    ],
)
def test_a_product_with_a_bias_works_where_its_version_has_it(
    with_version: Callable[[str], None], version: str, expected: Events
) -> None:
    with_version(version)
    assert _workspaces(nn.Linear(64, 64), (64,))[: len(expected)] == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [("2.14", [("request", CUBLAS_BYTES)]), ("2.15", [("request", CUBLAS_BYTES), ("end", CUBLAS_BYTES)] * 3)],
)
def test_cublas_keeps_its_workspace_until_2_14(
    with_version: Callable[[str], None], version: str, expected: Events
) -> None:
    with_version(version)
    # Inference is three steps of one product.
    assert _workspaces(nn.Linear(64, 64, bias=False), (64,)) == expected


class _MatrixVector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.matrix @ x.sum(0)


def test_a_product_with_a_vector_asks_for_the_workspace_too() -> None:
    assert _workspaces(_MatrixVector(), (64,)) == [("request", CUBLAS_BYTES)]


class _InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.linear(x))


def test_an_op_in_place_on_a_view_of_a_product_copies_until_2_14(with_version: Callable[[str], None]) -> None:
    peaks = []
    for version in ("2.14", "2.15"):
        with_version(version)
        spec = gpumem.extract(_InPlace(), (16, 64))
        peaks.append(sum(row[0] == 0 for row in spec.timeline(4, gpu="rtx3090")))
    assert peaks[0] > peaks[1]


def test_casts_are_kept_in_inference_mode_where_the_version_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    peaks = {}
    for kept in (False, True):
        monkeypatch.setattr("gpumem.extraction.autocast.inference_mode_caches_casts", lambda kept=kept: kept)
        spec = gpumem.extract(model, (256,), mode="infer", precision="amp-bf16")
        peaks[kept] = int(spec.estimate(4, gpu="rtx3090").requested_peak)
    # All four weights in 16 bit against one.
    assert peaks[True] - peaks[False] == 3 * 256 * 256 * 2


def test_measured_as_the_installed_torch_does() -> None:
    assert installed.inference_mode_caches_casts() == (installed.torch_version() < (2, 11))
    assert installed.lt_buffer() in LtBuffer


@pytest.mark.parametrize(("version", "nearest"), [("2.4", "2.6"), ("2.5", "2.6"), ("2.16", "2.15"), ("3.0", "2.15")])
def test_a_version_that_was_never_compared_is_said(
    with_version: Callable[[str], None], version: str, nearest: str
) -> None:
    with_version(version)
    report = gpumem.estimate(nn.Linear(8, 8), (8,), batch=2)
    said = f"was never compared: what its CUDA code requests is taken from {nearest}"
    assert any(said in sentence for sentence in report.to_dict()["assumptions"])


def test_compared_versions_say_nothing(with_version: Callable[[str], None]) -> None:
    for version in ("2.6", "2.15"):
        with_version(version)
        assert installed.assumed() is None


def test_the_stack_is_that_of_the_trace(with_version: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.8.0+cu128")
    with_version("2.8")
    spec = gpumem.extract(nn.Linear(8, 8), (8,))
    assert spec.estimate(2).to_dict()["stack"] == "torch-2.8+cu128"
    told = spec.estimate(2, stack="torch-2.14+cu130").to_dict()
    assert told["stack"] == "torch-2.14+cu130"
    assert any("requests are those of torch-2.8+cu128" in sentence for sentence in told["assumptions"])
