"""Recordings beside gpumem's predictions, as a table.

python -m tests.gpu_truth.compare            those of real cards under tests/data/gpu; writes
                                             benchmarks/results/real_gpu.md and python/gpumem/confirmed.txt
python -m tests.gpu_truth.compare DIR        any recording, a rehearsal's too; to standard output
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpumem.validation.place import card_of
from tests.gpu_truth.cases import BRACKETS, LAYERS, LOOPS, TIMES, Case
from tests.gpu_truth.predict import Compared, compare, facts_of, loop_spec, replayed
from tests.gpu_truth.recording import Line, Recording, read, recordings

REPOSITORY = Path(__file__).resolve().parents[2]
RESULT = REPOSITORY / "benchmarks" / "results" / "real_gpu.md"
CONFIRMED = REPOSITORY / "python" / "gpumem" / "confirmed.txt"
NOTHING = (
    "Nothing has been recorded on a real card yet: tests/data/gpu is empty (CONTRIBUTING.md says how to record).\n"
)
MIB = 1 << 20
KINDS = {"context": 2, "loop": len(LOOPS) + len(LAYERS), "bracket": len(BRACKETS), "times": len(TIMES)}


def compared(recording: Recording) -> Iterator[tuple[Line, Compared | str]]:
    """Every recorded loop with its comparison, or why there is none."""
    for line in recording.of("loop"):
        if "measurement" not in line:
            yield line, line["error"]
        elif line["measurement"]["outcome"] != "ran":
            yield line, f"{line['measurement']['outcome']}: {line['measurement']['message']}"
        else:
            yield line, compare(recording, line)


def text_of(recording: Recording, found: list[tuple[Line, Compared | str]]) -> str:
    """One recording as Markdown."""
    card = recording.card
    counts = ", ".join(f"{len(list(recording.of(kind)))} of {count} {kind}" for kind, count in KINDS.items())
    differences, rule = replayed(recording)
    equal = sum(not text for text in differences.values())
    what = "**a rehearsal on the virtual GPU, no measurement**" if recording.is_virtual else "a real card"
    lines = [
        f"## {card['name']}, torch {card['torch']}",
        "",
        f"{what}; driver {card['driver'] or 'none'}, CUDA {card['cuda']}, cuDNN {card['cudnn']}, device bytes by",
        f"{card['measured_by']}. Recorded: {counts}. {equal} of {len(differences)} histories replay exactly",
        f"(ties between blocks by {rule}).",
        "",
        *(f"- differs: {name}: {text}" for name, text in differences.items() if text),
        *_contexts(recording),
        "| loop | requested | allocated | reserved | outside MiB | requests that differ | beyond the tolerance |",
        "|---|---|---|---|---|---|---|",
        *(_loop(line, one) for line, one in found),
        "",
        *_brackets(recording),
        *_times(recording),
    ]
    return "\n".join(lines) + "\n"


def _loop(line: Line, one: Compared | str) -> str:
    if isinstance(one, str):
        return f"| {line['name']} | {one.splitlines()[0]} | | | | | |"
    cells = [_difference(one.row(quantity)) for quantity in ("requested", "allocated", "reserved")]
    outside = f"{one.measurement.outside_bytes / MIB:.0f}"
    requests = "" if one.requests is None or one.requests.equal else one.requests.text()
    beyond = "; ".join(text.partition(": ")[2].partition(":")[0] for text in one.complaints())
    return f"| {one.name} | {' | '.join(cells)} | {outside} | {requests} | {beyond} |"


def _difference(row: Any) -> str:
    if not row.difference_bytes:
        return "equal"
    return f"{row.difference_bytes:+,} ({100 * row.difference_bytes / row.likely:+.2f} %)"


def _contexts(recording: Recording) -> Iterator[str]:
    for line in recording.of("context"):
        if "steps" not in line:
            yield f"- {line['name']}: {line['error']}"
            continue
        yield f"{line['name']}, MiB of the process outside PyTorch's segments after each kind of kernel, and requests:"
        yield ""
        for row in line["steps"]:
            asked = f", requests {row['requests']}" if row.get("requests") else ""
            failed = f", failed: {row['error'].splitlines()[0]}" if "error" in row else ""
            yield f"- {row['after']}: {row['outside_bytes'] / MIB:.0f}{asked}{failed}"
        yield ""


def _brackets(recording: Recording) -> Iterator[str]:
    gpu = card_of(facts_of(recording))
    rows = [line for line in recording.of("bracket") if line.get("largest")]
    if rows:
        yield "| largest batch | limit | found | gpumem says of it and the next |"
        yield "|---|---|---|---|"
    for line in rows:
        said = []
        for end in ("fits", "fails"):
            case = Case(**{**line["case"], "batch": line["largest"] + (end == "fails")})
            # The limit is on PyTorch's segments alone.
            budget = {"budget": line["limit_bytes"] + MIB, "context": MIB}
            fits = loop_spec(case, gpu).fits(case.batch, gpu=gpu, cudnn_benchmark=case.benchmark, **budget)
            said.append("fits" if fits else "does not fit")
        yield f"| {line['name']} | {line['limit_bytes'] >> 30} GiB | {line['largest']} | {', '.join(said)} |"
    yield ""


def _times(recording: Recording) -> Iterator[str]:
    rows = [line for line in recording.of("times") if "measurement" in line and not recording.is_virtual]
    if rows:
        yield "| loop | milliseconds of a step (median of the last five) |"
        yield "|---|---|"
    for line in rows:
        seconds = sorted(step["seconds"] for step in line["measurement"]["steps"][-5:])
        yield f"| {line['name']} | {1000 * seconds[2]:.1f} |"
    yield ""


def confirmed_line(recording: Recording, found: list[tuple[Line, Compared | str]]) -> str:
    """The recording's line for `confirmed.txt`; empty unless every loop that ran is within its tolerance."""
    ran = [one for _, one in found if isinstance(one, Compared)]
    card = card_of(facts_of(recording))
    if card is None or not ran or any(text for one in ran for text in one.complaints()):
        return ""
    return f"{card}\t{recording.card['torch']}\t{len(ran)} loops"


def main(argv: list[str] | None = None) -> int:
    """The command."""
    given = [Path(name) for name in (sys.argv[1:] if argv is None else argv)]
    texts, lines = [], []
    for folder in given or recordings():
        recording = read(folder)
        found = list(compared(recording))
        texts.append(text_of(recording, found))
        if not recording.is_virtual:
            lines.append(confirmed_line(recording, found))
    if given:
        print("\n".join(texts))
        return 0
    head = "# Recorded on real cards, beside the predictions\n\n`python -m tests.gpu_truth.compare`\n\n"
    RESULT.write_text(head + ("\n".join(texts) or NOTHING), encoding="utf-8")
    text = "# Written by `python -m tests.gpu_truth.compare`: card, torch, what was confirmed on it.\n"
    CONFIRMED.write_text(text + "".join(f"{line}\n" for line in lines if line), encoding="utf-8")
    print(f"wrote {RESULT} and {CONFIRMED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
