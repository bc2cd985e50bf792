"""The predicted largest batch run on the virtual GPU with cuDNN's own workspaces, and the batches around it.

PYTHONPATH=python python -m tests.validation.brackets          writes benchmarks/results/validate_brackets.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import gpumem
from gpumem.validation import Bracket
from tests.validation.conftest import CARD

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "validate_brackets.md"
_AMP: dict[str, Any] = {"precision": "amp-fp16", "channels_last": True}
CASES: tuple[tuple[str, Any, str, dict[str, Any]], ...] = (
    ("hf:gpt2", None, "8GB", {}),
    ("torchvision:vit_b_16", None, "8GB", {}),
    ("torchvision:mobilenet_v3_large", None, "4GB", {}),
    ("torchvision:resnet18", None, "4GB", _AMP),
    ("torchvision:resnet50", None, "8GB", {}),
    ("torchvision:resnet18", (3, 64, 64), "2GB", {}),
    ("torchvision:resnet18", (3, 64, 64), "6GB", {}),
)
"""Model, input, budget, keywords."""

_HEAD = """# The largest batch, predicted and in fact

`python -m tests.validation.brackets`: {summary}

`gpumem.validate(..., on="{card}", bracket=True)`: training with SGD under the budget, the installed cuDNN's own plans
and workspaces for the card, PyTorch's own allocator.

| model | input | loop | budget | predicted | largest that runs |
|---|---|---|---|---|---|
"""


def _line(case: tuple[str, Any, str, dict[str, Any]], bracket: Bracket) -> str:
    model, shape, budget, keywords = case
    loop = " ".join(f"{name}={value}" for name, value in keywords.items()) or "fp32"
    found = "not found" if bracket.largest is None else bracket.largest
    return f"| {model} | {shape or 'its own'} | {loop} | {budget} | {bracket.predicted} | {found} |"


def main() -> int:
    """Run all and write the table."""
    torch.set_num_threads(1)
    lines, brackets = [], []
    for case in CASES:
        model, shape, budget, keywords = case
        answer = gpumem.validate(model, shape, on=CARD, budget=budget, bracket=True, **keywords)
        assert answer.bracket is not None
        brackets.append(answer.bracket)
        lines.append(_line(case, answer.bracket))
        print(lines[-1], flush=True)
    exact, safe = sum(bracket.exact for bracket in brackets), sum(bracket.safe for bracket in brackets)
    summary = f"{len(brackets)} cases, the predicted batch runs in {safe} and is the largest in {exact}."
    print(summary)
    RESULT.write_text(_HEAD.format(summary=summary, card=CARD) + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
