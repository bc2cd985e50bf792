"""Hints name keywords in Python and options on the command line."""

from __future__ import annotations

import pytest

from gpumem.cli.spelling import error_text, hint_text
from gpumem.errors import GpumemError

OPTIONS = frozenset({"mode", "input", "host_reads", "budget", "gpu", "context"})


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        ("pass mode='infer', or unfreeze it", "pass --mode infer, or unfreeze it"),
        ("pass host_reads='zeros' to answer", "pass --host-reads zeros to answer"),
        ('pass gpu="rtx3090" or budget="24GB"', "pass --gpu rtx3090 or --budget 24GB"),
        ("pass context= if yours is smaller", "pass --context if yours is smaller"),
        ("input='a=1:int64;b=2'", "--input 'a=1:int64;b=2'"),
        ("write sgd:momentum=0.9", "write sgd:momentum=0.9"),
        ("write input_ids=128:int64", "write input_ids=128:int64"),
        ("use sparse=False", "use sparse=False"),
        ("give target= its shape", "give target= its shape (target=: in Python only)"),
        ("gpumem.gpus() lists them", "`gpumem gpus` lists them"),
    ],
)
def test_hints(hint: str, told: str) -> None:
    assert hint_text(hint, OPTIONS) == told


def test_an_error_without_a_hint_is_one_line() -> None:
    assert error_text(GpumemError("the fact"), OPTIONS) == "the fact"
