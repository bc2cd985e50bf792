"""Every spec on the virtual GPU, without library workspaces and with them.

PYTHONPATH=python python -m tests.validation.sweep            all; writes benchmarks/results/validate.md
PYTHONPATH=python python -m tests.validation.sweep resnet18   those with this in their name; nothing is written
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from gpumem.errors import GpumemError
from gpumem.validation import Session, Validation
from tests.validation.specs import CARD, SPECS, Spec, run

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "validate.md"
_HEAD = """# `gpumem.validate` on the virtual GPU

`python -m tests.validation.sweep`: {summary}

Predicted and measured peaks of setup and three steps on a virtual {card}, one child process for all. "Without
workspaces": convolutions take none on either side, so that everything else is compared to the byte. "cuDNN's own": the
installed cuDNN's workspaces on both sides, since the prediction asks it too; differences are measured less predicted
bytes.

| spec | requested, predicted | requested, measured | without workspaces | requests | cuDNN's own | difference |
|---|---|---|---|---|---|---|
"""


def _line(spec: Spec, plain: Validation, real: Validation) -> str:
    row, other = plain.difference("requested"), real.difference("requested")
    requests = "all equal" if plain.requests.startswith("all ") else plain.requests
    outside = [one.quantity for one in real.differences if one.status == "outside"]
    verdict = f"outside: {', '.join(outside)}" if outside else real.verdict
    return (
        f"| {spec.name} | {row.likely:,} | {row.measured:,} | {plain.verdict} | {requests} | {verdict} | "
        f"{other.difference_bytes:+,} |"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the sweep; 0 when every requested peak without workspaces is equal that the device need not guess."""
    named = sys.argv[1:] if argv is None else argv
    torch.set_num_threads(1)
    chosen = [spec for spec in SPECS if not named or any(name in spec.name for name in named)]
    lines, equal, whole, asked, guessed = [], 0, 0, 0, 0
    started = time.perf_counter()
    with Session(f"virtual:{CARD}", library_workspaces=False) as plain, Session(f"virtual:{CARD}") as real:
        for spec in chosen:
            try:
                answers = run(plain, spec), run(real, spec)
            except GpumemError as error:
                lines.append(f"| {spec.name} | | | {type(error).__name__}: {error.message} | | | |")
                print(lines[-1], flush=True)
                continue
            for answer in answers:
                if not answer.ran:
                    print(answer, flush=True)
            row = answers[0].difference("requested")
            guessed += spec.guessed
            equal += answers[0].ran and row.likely == row.measured
            whole += answers[0].verdict == "equal"
            asked += answers[1].verdict == "equal"
            lines.append(_line(spec, *answers))
            print(lines[-1], flush=True)
    summary = (
        f"{len(chosen)} specs, {equal} with equal requested peaks, {whole} with all three of PyTorch's counters equal "
        f"({guessed} train recurrent layers, for which the virtual device guesses cuDNN's sizes); "
        f"with cuDNN's own workspaces {asked}."
    )
    print(f"{summary} {time.perf_counter() - started:.0f} s")
    if not named:
        RESULT.write_text(_HEAD.format(summary=summary, card=CARD) + "\n".join(lines) + "\n", encoding="utf-8")
    return 0 if equal >= len(chosen) - guessed else 1


if __name__ == "__main__":
    sys.exit(main())
