"""The printed snippet does to a model what `apply_regions` does."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from gpumem.checkpointing import code
from gpumem.checkpointing.options import CHECKPOINT, REENTRANT
from gpumem.errors import UnknownNameError
from tests.checkpointing.compare import AVAILABLE, differences, saved_bytes, step
from tests.checkpointing.models import CASES, Attending, Convolutional


@pytest.mark.parametrize("option", AVAILABLE)
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_same(name: str, option: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model = case.make().train()
    edited = copy.deepcopy(model)
    inputs = case.inputs()
    exec(code(dict.fromkeys(case.regions, option)), {"model": edited})
    assert list(edited.state_dict()) == list(model.state_dict())
    exact = (name, option) != ("recurrent", REENTRANT)
    assert differences(step(model, inputs), step(edited, inputs), exact=exact) == []
    assert saved_bytes(edited, inputs) < saved_bytes(model, inputs)


def test_options_mix_and_nest() -> None:
    torch.manual_seed(0)
    model = Convolutional().train()
    edited = copy.deepcopy(model)
    inputs = (torch.randn(2, 3, 8, 8),)
    options = dict(zip(("blocks.0", "blocks.1", "blocks.2", "blocks.3"), 2 * AVAILABLE, strict=False))
    regions = {**options, "blocks.0.body": CHECKPOINT, "blocks.0.body[3:6]": CHECKPOINT, "stem[0:2]": REENTRANT}
    exec(code(regions), {"model": edited})
    assert differences(step(model, inputs), step(edited, inputs)) == []


def test_without_batch_norm_it_is_shorter() -> None:
    regions = {"layers.0": CHECKPOINT, "layers.2": CHECKPOINT}
    short = code(regions, batch_norm=False, preserve_rng_state=False)
    assert len(short) < len(code(regions))
    assert "batch_norm" not in short
    assert short.count("preserve_rng_state=False") == 1
    model = Attending().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    edited = copy.deepcopy(model)
    exec(short, {"model": edited})
    tokens = (torch.randint(0, 40, (2, 7)),)
    plain = step(model, tokens)
    assert not [name for name in differences(plain, step(edited, tokens)) if name.startswith("output")]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp-bf16", "amp-fp16", "fp16", "bf16"])
def test_the_precision_has_its_lines(precision: str) -> None:
    text = code({"stem": CHECKPOINT}, precision)
    compile(text, "plan", "exec")
    assert ("autocast" in text) == precision.startswith("amp")
    assert ("GradScaler" in text) == (precision == "amp-fp16")
    assert ("model.to(" in text) == (precision in ("fp16", "bf16"))
    compile(code({}, precision), "plan", "exec")


def test_names_that_do_not_exist() -> None:
    with pytest.raises(UnknownNameError, match="unknown precision 'fp8'"):
        code({}, "fp8")
    with pytest.raises(UnknownNameError, match="'all'"):
        code({"stem": "all"})


def test_it_is_written_without_torch() -> None:
    script = (
        "import sys; from gpumem.checkpointing import code; code({'a': 'checkpoint'}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False"]
