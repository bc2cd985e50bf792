"""Programs in the shape of public training scripts, under several cards.

PYTHONPATH=python python -m tests.virtual.scripts run              every script under every card; can be interrupted
PYTHONPATH=python python -m tests.virtual.scripts run nanoGPT      those with this in their name
PYTHONPATH=python python -m tests.virtual.scripts summary          writes benchmarks/results/scripts.md

What ran is kept in target/scripts and does not run again until the program or its arguments change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gpumem.units import format_bytes
from gpumem.virtual import RunReport
from gpumem.virtual.run_report import SCHEMA
from tests.virtual.script_list import PROGRAMS, SCRIPTS, Script

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "scripts.md"
KEPT = ROOT / "target" / "scripts"
CARDS = ("rtx3090", "a100-80gb", "h100")
_QUANTITIES = ("requested", "allocated", "reserved")
_HEAD = """# Training scripts on the virtual GPU

`python -m tests.virtual.scripts run`, then `summary`: {summary}

Each program of `tests/virtual/programs` is written in the shape of a public script and runs as it would on a real card,
by `gpumem run`. With several processes a peak is the largest of any of them (PyTorch's three as the processes
print them, else the first process's). "Settled": the optimizer step after which no peak rose, of all. "Reads": how
often the host read values (they were zeros), and of those single numbers, on which branches may hang; both of the
first process. "s": time of the program on a busy machine with two cores, worker processes and compilers included.

| script | card | outcome | requested | allocated | reserved | device | settled | reads (single) | guessed sizes | s |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def run(script: Script, card: str) -> tuple[RunReport, list[str]]:
    """The report, and what the program printed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = ["run", "--gpu", card, "--gpus", str(script.gpus), "--report", str(file), *script.options]
        done = subprocess.run(
            [sys.executable, "-m", "gpumem", *command, *script.program()],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **script.variables},
        )
        if done.returncode:
            print(done.stderr[-3000:], file=sys.stderr)
        return RunReport.from_json(file.read_text(encoding="utf-8")), done.stdout.splitlines()


def printed(lines: list[str]) -> list[dict[str, object]]:
    """The lines that are JSON objects; what two processes write at once can stand on one line."""
    found = []
    for line in lines:
        rest = line
        while rest.startswith('{"'):
            value, end = json.JSONDecoder().raw_decode(rest)
            found.append(value)
            rest = rest[end:]
    return found


def _file(script: Script, card: str) -> Path:
    """Where the result of a run is kept."""
    sources = "".join((PROGRAMS / name).read_text(encoding="utf-8") for name in (script.command[0], "gpt.py"))
    text = f"{script} {card} {sources} {SCHEMA}"
    return KEPT / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _run_all(scripts: list[Script]) -> int:
    """Run what is not kept yet; the exit code is 0 when all finished."""
    KEPT.mkdir(parents=True, exist_ok=True)
    finished = True
    for card in CARDS:
        for script in scripts:
            file = _file(script, card)
            if not file.exists():
                report, lines = run(script, card)
                file.write_text(json.dumps({"report": report.to_json(), "lines": lines}), encoding="utf-8")
                print(row(script, card, report, lines), flush=True)
                finished = finished and report.outcome == "finished"
    return 0 if finished else 1


def _summary() -> int:
    """Write the table; the exit code is 0 when everything ran and finished."""
    rows, finished, versions = [], 0, set()
    for script in SCRIPTS:
        for card in CARDS:
            file = _file(script, card)
            if file.exists():
                kept = json.loads(file.read_text(encoding="utf-8"))
                report = RunReport.from_json(kept["report"])
                finished += report.outcome == "finished"
                versions.add(report.torch)
                rows.append(row(script, card, report, kept["lines"]))
    wanted = len(SCRIPTS) * len(CARDS)
    summary = (
        f"{len(rows)} of {wanted} runs ({len(SCRIPTS)} scripts on {', '.join(CARDS)}), {finished} finished "
        f"(torch {', '.join(sorted(versions))})."
    )
    print(summary)
    RESULT.write_text(_HEAD.format(summary=summary) + "\n".join(rows) + "\n", encoding="utf-8")
    return 0 if finished == wanted else 1


def _peaks(report: RunReport, lines: list[str]) -> list[str]:
    """The four quantities as text: PyTorch's three as the processes printed them, else those of the first process."""
    device = max((use.device_peak_bytes for use in report.processes), default=0)
    ranks = [line for line in printed(lines) if "rank" in line]
    texts = []
    for name in _QUANTITIES:
        peaks = [int(str(rank[name])) for rank in ranks]
        peaks = peaks or [getattr(use, f"{name}_peak_bytes") for use in report.devices]
        texts.append(format_bytes(max(peaks)) if peaks else "-")
    return [*texts, format_bytes(device)]


def row(script: Script, card: str, report: RunReport, lines: list[str]) -> str:
    """A line of the table."""
    settled = f"{report.settled_after_steps} of {report.optimizer_steps}" if report.optimizer_steps else "-"
    reads = sum(read.reads for read in report.host_reads)
    single = sum(read.scalars for read in report.host_reads)
    guessed = ", ".join(sorted({name.removeprefix("cudnnGet") for name in report.guessed_sizes})) or "none"
    outcome = report.outcome if report.outcome == "finished" else f"{report.outcome}: {report.message.splitlines()[:1]}"
    cells = [script.name, card, outcome, *_peaks(report, lines), settled, f"{reads} ({single})", guessed]
    return f"| {' | '.join(cells)} | {report.seconds:.0f} |"


def main(argv: list[str] | None = None) -> int:
    """Run scripts or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "summary"))
    parser.add_argument("names", nargs="*", help="parts of names; all without")
    arguments = parser.parse_args(argv)
    if arguments.action == "summary":
        return _summary()
    return _run_all([s for s in SCRIPTS if not arguments.names or any(name in s.name for name in arguments.names)])


if __name__ == "__main__":
    sys.exit(main())
