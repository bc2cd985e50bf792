"""gpumem's estimator and its virtual GPU against the runs published with xMem (RTX 3060 and 4060, NVML).

python -m benchmarks.truth_xmem run [models ...] [--again failed|all]    resumable; target/truth_xmem.jsonl
python -m benchmarks.truth_xmem summary                                  writes benchmarks/results/truth_xmem.md
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from benchmarks.truth.journal import Journal
from benchmarks.truth.reasons import GENERATION_A_REASONS, XMEM_REASONS
from benchmarks.truth.rows import REPOSITORY, SHARED_TRUTH, Row, read_rows
from benchmarks.truth.xmem import UNSTATED, run_of

import gpumem
from gpumem.validation import Session

JOURNAL = REPOSITORY / "target" / "truth_xmem.jsonl"
TABLE = REPOSITORY / "benchmarks" / "results" / "truth_xmem.md"
ROW_SECONDS = 600
MIB = 1 << 20
WORST = 10


def _card(row: Row) -> str:
    return "3060" if "3060" in row["gpu"] else "4060"


def rows_by_key() -> dict[str, Row]:
    """Rows by what tells them apart; a repeated run (one pair) is asked once."""
    rows = read_rows(SHARED_TRUTH / "xmem_runs.csv")
    return {
        f"{row['generation']} {row['model']} {row['optimizer']} {row['batch']} on {_card(row)}": row for row in rows
    }


def measure(row: Row, session: Callable[[str], Session]) -> dict[str, Any]:
    """The estimate and the run on the virtual card, both within the card's memory."""
    run = run_of(row)
    found = session(run.gpu).validate(run.model, run.input, batch=run.batch, **run.keywords)
    peak, measured = found.predicted.reserved_peak, found.measured
    result: dict[str, Any] = {
        "position": run.position,
        "fits": found.predicted.fits,
        "ends_bytes": [peak.low, peak.likely, peak.high],
        "requested_bytes": int(found.predicted.requested_peak),
        "context_bytes": found.predicted.to_dict()["context"],
        "virtual": {
            "outcome": measured.outcome,
            "requested_bytes": measured.requested_peak_bytes,
            "reserved_bytes": measured.reserved_peak_bytes,
            "retries": measured.retries,
        },
        "requests": found.requests,
    }
    if not row["zero_grad_pos"]:
        other = run_of(row, "POS0")
        report = gpumem.estimate(other.model, other.input, batch=other.batch, gpu=other.gpu, **other.keywords)
        result["at_start_bytes"] = int(report.reserved_peak)
    return result


def _percent(row: Row, bytes_: int) -> float:
    measured = int(row["nvml_peak_bytes"])
    return 100 * (bytes_ - measured) / measured


Pairs = Sequence[tuple[Row, dict[str, Any]]]


def _estimate(result: dict[str, Any]) -> int | None:
    return int(result["ends_bytes"][1])


def _high(result: dict[str, Any]) -> int | None:
    return int(result["ends_bytes"][2])


def _at_start(result: dict[str, Any]) -> int | None:
    return int(result.get("at_start_bytes", result["ends_bytes"][1]))


def _virtual(result: dict[str, Any]) -> int | None:
    return int(result["virtual"]["reserved_bytes"]) if result["virtual"]["outcome"] == "ran" else None


WAYS: dict[str, Callable[[dict[str, Any]], int | None]] = {
    "gpumem.estimate, likely": _estimate,
    "gpumem.estimate, upper end": _high,
    "gpumem.estimate, likely, gradients zeroed at the start in B": _at_start,
    "virtual GPU": _virtual,
}


def _rows_of(name: str, chosen: Pairs, ask: Callable[[dict[str, Any]], int | None]) -> str:
    errors = [_percent(row, bytes_) for row, result in chosen if (bytes_ := ask(result)) is not None]
    return _line(name, errors)


def _line(name: str, errors: list[float]) -> str:
    if not errors:
        return f"| {name} | 0 | | | | |"
    sizes = [abs(error) for error in errors]
    under = sum(error < 0 for error in errors)
    near = sum(size <= 5 for size in sizes)
    return (
        f"| {name} | {len(errors)} | {statistics.median(sizes):.1f} % | {max(sizes):.1f} % | "
        f"{100 * under / len(errors):.0f} % | {near} |"
    )


def _tables(done: Pairs) -> list[str]:
    ran = [(row, result) for row, result in done if row["oom"] == "false"]
    groups: dict[str, Callable[[Row], bool]] = {
        "all": lambda row: True,
        "VGG": lambda row: row["model"].startswith("VGG"),
        "other convolutional": lambda row: row["kind"] == "cnn" and not row["model"].startswith("VGG"),
        "transformers": lambda row: row["kind"] != "cnn",
        **{f"generation {name}": lambda row, name=name: row["generation"] == name for name in "ABC"},  # type: ignore[misc]
    }
    head = "| rows | compared | median absolute error | worst | under | within 5 % |"
    lines = []
    for title, which in groups.items():
        chosen = [(row, result) for row, result in ran if which(row)]
        lines += [f"### {title}", "", head, "|---|---|---|---|---|---|"]
        lines += [_rows_of(name, chosen, ask) for name, ask in WAYS.items()]
        for rival in ("xmem", "dnnmem"):
            column = f"{rival}_estimate_bytes"
            lines.append(
                _line(f"{rival} (as published)", [_percent(row, int(row[column])) for row, _ in chosen if row[column]])
            )
        lines.append("")
    return lines


def _full(done: Pairs) -> list[str]:
    """Runs that ended out of memory, and those that did not."""
    rows = [(row, result["fits"], result["virtual"]["outcome"]) for row, result in done]
    ran = [(fits, outcome) for row, fits, outcome in rows if row["oom"] == "false"]
    full = [(fits, outcome) for row, fits, outcome in rows if row["oom"] == "true"]
    refused = sum(outcome == "out of memory" for _, outcome in full)
    return [
        "| on the card | rows | gpumem.estimate says so | virtual GPU says so |",
        "|---|---|---|---|",
        f"| ran | {len(ran)} | {sum(bool(fits) for fits, _ in ran)} | {sum(outcome == 'ran' for _, outcome in ran)} |",
        f"| out of memory | {len(full)} | {sum(not fits for fits, _ in full)} | {refused} |",
    ]


def _row(key: str, row: Row, result: dict[str, Any]) -> str:
    measured = int(row["nvml_peak_bytes"]) / MIB
    low, likely, high = (bytes_ / MIB for bytes_ in result["ends_bytes"])
    error = "" if row["oom"] == "true" else f"{_percent(row, result['ends_bytes'][1]):+.1f} %"
    start = f"{result['at_start_bytes'] / MIB:,.0f}" if "at_start_bytes" in result else ""
    virtual = result["virtual"]
    device = virtual["outcome"]
    if device == "ran":
        device = f"{virtual['reserved_bytes'] / MIB:,.0f}"
        device += "" if row["oom"] == "true" else f" ({_percent(row, virtual['reserved_bytes']):+.1f} %)"
    rival = (
        ""
        if not row["xmem_estimate_bytes"] or row["oom"] == "true"
        else f"{_percent(row, int(row['xmem_estimate_bytes'])):+.1f} %"
    )
    said = f"{measured:,.0f}" + (", then out of memory" if row["oom"] == "true" else "")
    return (
        f"| {key} | {result['position']} | {said} | {likely:,.0f} | {low:,.0f} to {high:,.0f} | {error} | {start} | "
        f"{device} | {rival} |"
    )


def summary(journal: Journal) -> str:
    """The tables as Markdown."""
    rows = rows_by_key()
    kept = {key: result for key, result in journal.results.items() if key in rows and "error" not in result}
    done = [(rows[key], result) for key, result in kept.items()]
    failed = [f"- {key}: {result['error']}" for key, result in journal.results.items() if "error" in result]
    ran = [key for key in kept if rows[key]["oom"] == "false"]
    worst = sorted(ran, key=lambda key: -abs(_percent(rows[key], kept[key]["ends_bytes"][1])))[:WORST]
    lines = [
        "# The runs published with xMem",
        "",
        f"`python -m benchmarks.truth_xmem run`, then `summary`: {len(done)} of {len(rows)} different rows of",
        "`shared/truth/xmem_runs.csv` (recipe and doubts in `xmem_recipe.md`): training on an RTX 3060 or 4060, peak",
        "of NVML's figure for the card less its first sample. **The context is in that first sample** (an inference of",
        "the recipe's), so what is compared is the peak of reserved bytes, without a context: kernels that are loaded",
        "later and the libraries' own memory are in the measurement and not in ours, which puts us below. torch 2.3 or",
        f"2.6 with their cuDNN there, torch {torch.__version__} with its cuDNN here. Where gradients are zeroed in",
        f"generation B is not stated: {UNSTATED}, the default of the stored code, is taken, and the other beside it.",
        "",
        *_tables(done),
        "## Out of memory",
        "",
        "At the card's memory, the context's upper end set aside.",
        "",
        *_full(done),
        "",
        f"## The {WORST} worst of gpumem.estimate",
        "",
        *(f"- {key} ({_percent(rows[key], kept[key]['ends_bytes'][1]):+.1f} %): {_reason(rows[key])}" for key in worst),
        "",
        "## Rows",
        "",
        "| run | zero_grad | measured MiB | estimate | low to high | error | zeroed at start | virtual GPU | xMem |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(key, rows[key], result) for key, result in kept.items()),
        "",
        *failed,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _reason(row: Row) -> str:
    tables = [GENERATION_A_REASONS] if row["generation"] == "A" else []
    for table in (*tables, XMEM_REASONS):
        for names, text in table.items():
            if row["model"] in names:
                return text
    return "unexplained"


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.truth_xmem")
    parser.add_argument("action", choices=("run", "summary"))
    parser.add_argument("models", nargs="*", help="default: all")
    parser.add_argument("--again", choices=("none", "failed", "all"), default="none")
    arguments = parser.parse_args(argv)
    journal = Journal(JOURNAL)
    torch.set_num_threads(1)
    if arguments.action == "run":
        rows = rows_by_key()
        keys = [key for key, row in rows.items() if not arguments.models or row["model"] in arguments.models]
        totals = {card.name: card.total_bytes for card in gpumem.gpus()}
        sessions: dict[str, Session] = {}

        def session(gpu: str) -> Session:
            if gpu not in sessions:
                sessions[gpu] = Session(f"virtual:{gpu}", budget=totals[gpu], timeout=ROW_SECONDS)
            return sessions[gpu]

        try:
            journal.run(keys, lambda key: measure(rows[key], session), ROW_SECONDS, arguments.again)
        finally:
            for opened in sessions.values():
                opened.close()
    TABLE.write_text(summary(journal), encoding="utf-8")
    print(f"wrote {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
