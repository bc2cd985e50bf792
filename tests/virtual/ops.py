"""PyTorch's operations on the virtual GPU: each runs through, or ends with an error that says why; no process may end.

    python -m tests.virtual.ops run [--gpu h100] [--samples 4] [NAME ...]     can be interrupted; names: those alone
    python -m tests.virtual.ops summary [--gpu h100]                          writes benchmarks/results/virtual_ops.md

The operations are those of `tests/virtual/programs/op_corpus.py`. A child process runs one after the other; when it
ends by a signal or hangs, that is noted for the operation that it was at, and another child goes on after it. What came
of them is kept in `target/virtual_ops`. Ten minutes to half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumem.virtual import installed
from gpumem.virtual.environment import Device, environment

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("programs") / "op_corpus.py"
RESULT = ROOT / "benchmarks" / "results" / "virtual_ops.md"
KEPT = ROOT / "target" / "virtual_ops"
HANG_SECONDS = 900
"""Without a sign of life for so long, a child is ended: `special_functions` compiles kernels for minutes."""

_HEAD = """# PyTorch's operations on the virtual GPU

`python -m tests.virtual.ops run --gpu {gpu} --samples {samples}`, then `summary`, torch {torch}: {cases} cases.

A case is an operation in one type with up to {samples} of the sample inputs of PyTorch's own list (`op_db`), forward
and backward, or one of `tests/virtual/programs/*_ops.py`. Nothing is computed, so errors about values are right:
zeros are no positive definite matrix. What matters: **no case ends the process**.

| ran through | ended with an error of Python | ended the process | hung |
|---|---|---|---|
| {ok} | {error} | {crash} | {hang} |

"""


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        name: Operation and type.
        state: `ok`, `error`, `crash` (by a signal, or it left) or `hang`.
        message: Of the exception, or how the process ended.
        refused: Entry points of CUDA that the virtual GPU refused.
        samples: How many sample inputs ran.
    """

    name: str
    state: str
    message: str = ""
    refused: tuple[str, ...] = ()
    samples: int = 0

    @classmethod
    def of(cls, line: dict[str, Any]) -> Outcome:
        """From the child's line."""
        message = ": ".join(text for text in (line.get("kind"), line.get("message")) if text)
        return cls(line["name"], line["state"], message, tuple(line["refused"]), line.get("samples", 0))


def run(log: Path, *, gpu: str, samples: int, names: Sequence[str] = ()) -> None:
    """Run every case that `log` does not have yet; a line is added for each."""
    with environment(Device(gpu=gpu), os.environ) as variables:
        while not _ended(lines := _read(log)):
            first = max((line["number"] for line in lines), default=-1) + 1
            how = _child(log, variables, [str(first), str(samples), *names])
            lines = _read(log)
            if lines and lines[-1]["state"] == "begun":
                left = {"number": lines[-1]["number"], "name": lines[-1]["name"], "refused": []}
                state = "hang" if how == "hang" else "crash"
                _add(log, {**left, "state": state, "kind": "", "message": how})
                print(f"{state}: {left['name']}: {how}", flush=True)
            elif not _ended(lines):
                raise RuntimeError(f"the child ended before it came to an operation: {how}")


def outcomes(log: Path) -> list[Outcome]:
    """What came of each case in `log`."""
    return [Outcome.of(line) for line in _read(log) if line["state"] not in ("begun", "end")]


def _child(log: Path, variables: dict[str, str], arguments: list[str]) -> str:
    """Start a child and wait until it ends, or hangs; returns how."""
    command = [sys.executable, str(CHILD), str(log), *arguments]
    with log.with_suffix(".err").open("a", encoding="utf-8") as errors:
        child = subprocess.Popen(command, env=variables, stderr=errors, stdout=errors)
        alive = time.monotonic()
        size = -1
        while child.poll() is None:
            time.sleep(0.2)
            now = log.stat().st_size if log.exists() else 0
            if now != size:
                size, alive = now, time.monotonic()
            if time.monotonic() - alive > HANG_SECONDS:
                child.kill()
                child.wait()
                return "hang"
    return f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"


def _read(log: Path) -> list[dict[str, Any]]:
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def _ended(lines: list[dict[str, Any]]) -> bool:
    return bool(lines) and lines[-1]["state"] == "end"


def _add(log: Path, line: dict[str, Any]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def summary(found: list[Outcome], *, gpu: str, samples: int) -> str:
    """The text of the table."""
    count: dict[str, int] = defaultdict(int)
    for outcome in found:
        count[outcome.state] += 1
    states = {state: count[state] for state in ("ok", "error", "crash", "hang")}
    text = _HEAD.format(gpu=gpu, samples=samples, torch=installed.torch().version, cases=len(found), **states)
    bad = [outcome for outcome in found if outcome.state in ("crash", "hang")]
    text += "".join(f"- **{outcome.name}**: {outcome.message}\n" for outcome in bad)
    refused = _grouped([(symbol, outcome.name) for outcome in found for symbol in outcome.refused])
    text += "\n## Entry points that were refused\n\n| entry point | by |\n|---|---|\n" + refused
    errors = _grouped([(outcome.message, outcome.name) for outcome in found if outcome.state == "error"])
    return text + "\n## Errors of Python\n\n| message (first line) | of |\n|---|---|\n" + errors


def _grouped(pairs: list[tuple[str, str]]) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    for key, name in pairs:
        groups[key.replace("|", "\\|")[:200]].append(name)
    order = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return "".join(f"| {key} | {_shortened(names)} |\n" for key, names in order)


def _shortened(names: list[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"`{name}`" for name in names[:most]) + rest


def main() -> int:
    """Run or write the table; 0 when no case ended its process or hung."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "summary"))
    parser.add_argument("names", nargs="*", help="operations; all without")
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--samples", type=int, default=4, help="at most so many inputs of an operation in one type")
    arguments = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    log = KEPT / f"{arguments.gpu}-{arguments.samples}.jsonl"
    if arguments.action == "run":
        run(log, gpu=arguments.gpu, samples=arguments.samples, names=arguments.names)
    found = outcomes(log)
    if arguments.action == "summary":
        RESULT.write_text(summary(found, gpu=arguments.gpu, samples=arguments.samples), encoding="utf-8")
    bad = [outcome for outcome in found if outcome.state in ("crash", "hang")]
    print(f"{len(found)} cases, {len(bad)} ended the process or hung")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
