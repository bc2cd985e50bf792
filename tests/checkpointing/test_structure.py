"""A plan for another model is refused with the first difference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gpumem.checkpointing import apply_regions, check_fingerprint, fingerprint, first_difference
from gpumem.errors import ModelMismatchError
from tests.checkpointing.models import Attending, Convolutional


def test_values_mode_and_plans_make_no_difference() -> None:
    model, other = Convolutional(), Convolutional().eval()
    other.requires_grad_(False)
    stored = fingerprint(model)
    assert fingerprint(other) == stored
    with apply_regions(other, {"stem": "checkpoint"}):
        assert fingerprint(other) == stored
    with torch.device("meta"):
        assert first_difference(Convolutional(), stored) is None
    check_fingerprint(model, stored)


def _changed(change: str) -> nn.Module:
    model = Attending(2)
    layer: Any = model.layers[1]
    if change == "shape":
        layer.linear1 = nn.Linear(16, 48)
    elif change == "class":
        layer.dropout1 = nn.Identity()
    elif change == "name":
        layer.extra = nn.Linear(2, 2)
    elif change == "parameter":
        layer.linear2 = nn.Linear(32, 16, bias=False)
    elif change == "dtype":
        layer.linear1.half()
    elif change == "more":
        model.last = nn.Tanh()
    return model


_BIAS_MISSING = (
    "module 'layers.1.norm1' (LayerNorm) stands where the plan had parameter 'layers.1.linear2.bias' (16 float32)"
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("shape", "parameter 'layers.1.linear1.weight' has the shape 48x16, the plan had 32x16"),
        ("class", "module 'layers.1.dropout1' is a Identity, the plan had a Dropout"),
        ("name", "module 'layers.1.extra' (Linear) stands where the plan had module 'head' (Linear)"),
        ("parameter", _BIAS_MISSING),
        ("dtype", "parameter 'layers.1.linear1.weight' is float16, the plan had float32"),
        ("more", "module 'last' (Tanh) is not in the planned model"),
    ],
)
def test_the_first_difference_is_named(change: str, message: str) -> None:
    stored = fingerprint(Attending(2))
    assert first_difference(_changed(change), stored) == message
    assert fingerprint(_changed(change)) != stored
    with pytest.raises(ModelMismatchError) as error:
        check_fingerprint(_changed(change), stored)
    assert error.value.message == f"the plan was made for another model: {message}"


def test_what_is_missing_and_what_is_another_class_altogether() -> None:
    assert first_difference(Attending(2), fingerprint(_changed("more"))) == (
        "module 'last' (Tanh) of the planned model is missing"
    )
    assert first_difference(Convolutional(), fingerprint(Attending(2))) == (
        "the model is a Convolutional, the plan had a Attending"
    )


def test_dtypes_can_be_left_out() -> None:
    stored = fingerprint(Attending(2))
    assert first_difference(_changed("dtype"), stored, dtypes=False) is None
    assert first_difference(Attending(2).half(), stored, dtypes=False) is None
    assert first_difference(_changed("shape").half(), stored, dtypes=False) is not None


def test_repeated_blocks_cost_little() -> None:
    few, many = fingerprint(Attending(2)), fingerprint(Attending(96))
    assert len(many) - len(few) < 10_000


@pytest.mark.parametrize(
    "stored", ["", "gpumem-structure-1:abc", "gpumem-structure-1:0000:zzzz", "gpumem-structure-2:a:b"]
)
def test_damaged_or_newer(stored: str) -> None:
    with pytest.raises(ModelMismatchError, match=r"fingerprint is (damaged|of the kind)"):
        first_difference(Convolutional(), stored)


def test_a_flipped_character_is_seen() -> None:
    stored = fingerprint(Convolutional())
    middle = len(stored) // 2
    flipped = stored[:middle] + ("0" if stored[middle] != "0" else "1") + stored[middle + 1 :]
    with pytest.raises(ModelMismatchError, match="damaged"):
        first_difference(Convolutional(), flipped)
