"""What a trace knows of values without having any: tests for NaN, masks from the host, assertions.

PYTEST_DONT_REWRITE: an assertion of a program is looked for in its bytecode, which pytest would change.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from gpumem import Report
from gpumem.api import extract
from gpumem.errors import DataDependentError, ExtractionError

WIDTH = 64
_Change = Callable[[torch.Tensor], torch.Tensor]


class Changing(nn.Module):
    """Two layers, and between them what a test wants to see traced."""

    def __init__(self, change: _Change) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.after = nn.Linear(WIDTH, WIDTH)
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.after(self.change(self.before(x)))
        return y


def _report(change: _Change, batch: int = 8) -> Report:
    return extract(Changing(change), (WIDTH,)).estimate(batch)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _clamped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-1.0, 1.0)


FINITE_TESTS: dict[str, Callable[[torch.Tensor], bool]] = {
    "isfinite all": lambda x: not torch.isfinite(x).all(),
    "isfinite, in one": lambda x: bool((~x.isfinite()).any()),
    "isinf or isnan": lambda x: bool((x.isinf() | x.isnan()).any()),
    "isnan, item": lambda x: bool(x.isnan().any().item()),
    "unequal to itself": lambda x: bool((x != x).any()),
    "by row": lambda x: not x.isfinite().all(dim=1).all(),
}


@pytest.mark.parametrize("name", FINITE_TESTS)
def test_values_are_finite(name: str) -> None:
    broken = FINITE_TESTS[name]

    def change(x: torch.Tensor) -> torch.Tensor:
        return _clamped(x) if broken(x) else x

    def other_way(x: torch.Tensor) -> torch.Tensor:
        return x if broken(x) else _clamped(x)

    # What decides costs memory itself, but is gone before the peak of a step.
    assert _report(change).requested_peak == _report(_same).requested_peak
    assert _report(other_way).requested_peak == _report(_clamped).requested_peak
    assert any("finite" in said and "test_known_values.py" in said for said in _report(change).assumptions)


def test_infinite_is_not_said_where_nobody_asks() -> None:
    assert not any("finite" in said for said in _report(_same).assumptions)


def _chosen_rows(x: torch.Tensor) -> torch.Tensor:
    mask = np.zeros(x.shape, dtype=bool)
    mask[:, : WIDTH // 4] = True
    chosen = x[torch.tensor(mask, device=x.device)]
    # Another number of elements than known would not fit.
    return x + chosen.reshape(x.shape[0], WIDTH // 4).mean(1, keepdim=True)


def test_a_mask_from_the_host_selects_as_many() -> None:
    _report(_chosen_rows)


def test_a_mask_from_the_host_through_views_and_logic() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor([[True] + [False] * (WIDTH - 1)], device=x.device)
        both = mask.expand(x.shape) | torch.zeros(x.shape, dtype=torch.bool).to(x.device)
        assert x.masked_select(~both).numel() == x.shape[0] * (WIDTH - 1)
        assert both.nonzero().shape == (x.shape[0], 2)
        return x

    _report(change)


def test_numbers_from_the_host_are_read_back() -> None:
    sizes = [3, 5, 8]

    def change(x: torch.Tensor) -> torch.Tensor:
        on_device = torch.tensor(sizes, device=x.device)
        assert on_device.tolist() == sizes
        assert int(on_device.sum()) == sum(sizes)
        assert on_device[1].item() == sizes[1]
        assert [part.shape[1] for part in x[:, : sum(sizes)].split(on_device.tolist(), dim=1)] == sizes
        return x

    _report(change)


def test_what_was_written_to_since_is_not_known() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor([True, False], device=x.device)
        mask[:1] = x[0, :1] > 0
        return x if mask.any() else _clamped(x)

    with pytest.raises(DataDependentError):
        _report(change)


def test_what_depends_on_the_batch_is_not_known() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        mask = torch.tensor([True] * WIDTH, device=x.device)
        return x if (mask & (x[0] > 0)).any() else _clamped(x)

    with pytest.raises(DataDependentError):
        _report(change)


def _asserts_item(x: torch.Tensor) -> torch.Tensor:
    assert torch.all(x >= 0).item(), "negative"
    return x


def _asserts_tensor(x: torch.Tensor) -> torch.Tensor:
    assert (x >= 0).all()
    return x


def _asserts_not(x: torch.Tensor) -> torch.Tensor:
    assert not (x < 0).any()
    return x


def _asserts_comparison(x: torch.Tensor) -> torch.Tensor:
    limit = x.shape[0]
    assert x.max().item() <= limit
    return x


def _checks(x: torch.Tensor) -> torch.Tensor:
    torch._check_tensor_all(x >= 0, lambda: "negative")
    return x


def _checks_distribution(x: torch.Tensor) -> torch.Tensor:
    return x + torch.distributions.Normal(x, x.exp(), validate_args=True).mean


@pytest.mark.parametrize(
    "change", [_asserts_item, _asserts_tensor, _asserts_not, _asserts_comparison, _checks, _checks_distribution]
)
def test_checks_hold(change: _Change) -> None:
    assert any("check of values" in said for said in _report(change).assumptions)


def test_a_branch_that_raises_another_error_is_no_assertion() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        if (x < 0).any():
            raise ValueError
        return x

    with pytest.raises(DataDependentError):
        _report(change)


def test_the_error_names_the_line_of_the_program() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        return x if 0.5 in x else _clamped(x)

    with pytest.raises(DataDependentError, match=r"test_known_values\.py"):
        _report(change)


def test_spans_drawn_on_the_host_do_not_overlap() -> None:
    spans, length = 4, 3

    def change(x: torch.Tensor) -> torch.Tensor:
        mask = np.zeros(x.shape, dtype=bool)
        for row in mask:
            for start in np.random.choice(WIDTH - length, spans, replace=False):
                row[start : start + length] = True
        chosen = x[torch.tensor(mask, device=x.device)]
        assert chosen.shape == (x.shape[0] * spans * length,)
        return x

    assert any("equal distances" in said for said in _report(change).assumptions)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_number_too_large_for_the_type_is_refused_as_on_cuda(in_place: bool) -> None:
    lowest = torch.finfo(torch.float32).min

    def change(x: torch.Tensor) -> torch.Tensor:
        return x.clone().masked_fill_(x > 0, lowest) if in_place else x.masked_fill(x > 0, lowest)

    with pytest.raises(ExtractionError, match="without overflow"):
        extract(Changing(change), (WIDTH,), precision="amp-bf16")
    extract(Changing(change), (WIDTH,), precision="fp32")


def test_masked_fill_takes_its_value_from_the_host() -> None:
    def change(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x > 0, torch.tensor(0.5))

    def number(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(x > 0, 0.5)

    assert _report(change).requested_peak == _report(number).requested_peak
