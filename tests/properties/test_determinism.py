"""The same question gets the same bytes for an answer, whatever the hash seed and the number of threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import hashlib, os, torch
from torch import nn
from gpumem.api import extract
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(288, 10)
)
spec = extract(model, (3, 8, 8), precision="amp-fp16", optimizer="adamw")
text = spec.to_json() + spec.estimate(33, gpu="rtx3090").to_json() + str(spec.max_batch(budget="2GiB"))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def _answer(seed: str, threads: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=200
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def reference() -> str:
    return _answer("0", "1")


@pytest.mark.parametrize(("seed", "threads"), [("1", "1"), ("4294967295", "4"), ("random", "2")])
def test_nothing_depends_on_it(reference: str, seed: str, threads: str) -> None:
    assert len(reference) == 64
    assert _answer(seed, threads) == reference
