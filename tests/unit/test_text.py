"""What is written as text, as values of the Python API."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpumem.errors import InputError
from gpumem.text import input_from_text, optimizer_from_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3,224,224", (3, 224, 224)),
        (" 3, 224, 224 ", (3, 224, 224)),
        ("128", (128,)),
        ("(3, 224, 224)", (3, 224, 224)),
        ("input_ids=128:int64;labels=:int64", {"input_ids": ((128,), torch.int64), "labels": ((), torch.int64)}),
        ("(128,):torch.int64", ((128,), torch.int64)),
        ("128:int64", ((128,), torch.int64)),
        ("3,64,64;10", ((3, 64, 64), (10,))),
        ("input_ids=128:int64", {"input_ids": ((128,), torch.int64)}),
        (
            "input_ids=128:int64; labels=128:int64",
            {"input_ids": ((128,), torch.int64), "labels": ((128,), torch.int64)},
        ),
    ],
)
def test_inputs(text: str, expected: Any) -> None:
    assert input_from_text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "3,x",
        "3x224",
        "-3,4",
        "3,",
        "a=3;4",
        "a=",
        "3:floaty",
        "3:nn",
        "3.5",
        "3:",
        "a=3;a=4",
        "(3",
        "\u0663,4",
        ":",
        "labels=",
    ],
)
def test_inputs_that_cannot_be_read_say_how_to_write_them(text: str) -> None:
    with pytest.raises(InputError) as caught:
        input_from_text(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adamw", "adamw"),
        ("sgd:momentum=0.9", ("sgd", {"momentum": 0.9})),
        ("sgd:momentum=0.9, nesterov=True", ("sgd", {"momentum": 0.9, "nesterov": True})),
        ("adamw()", "adamw"),
        ("AdamW(lr=1e-3)", ("AdamW", {"lr": 1e-3})),
        ("sgd (momentum=0.9, nesterov=True)", ("sgd", {"momentum": 0.9, "nesterov": True})),
        ("adamw:betas=(0.9, 0.95),fused=True", ("adamw", {"betas": (0.9, 0.95), "fused": True})),
    ],
)
def test_optimizers(text: str, expected: Any) -> None:
    assert optimizer_from_text(text) == expected


@pytest.mark.parametrize(
    "text",
    ["sgd:", "sgd:0.9", "sgd:momentum", "sgd:momentum=high", "sgd:**x", "sgd:a=1)+f(b=2", "sgd(0.9)", "sgd(momentum)"],
)
def test_optimizer_arguments_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InputError, match="optimizer's arguments"):
        optimizer_from_text(text)
