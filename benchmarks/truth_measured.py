"""gpumem against values that others measured on real GPUs (`measured.csv`, grade A).

python -m benchmarks.truth_measured run [--again failed|all]    resumable; results in target/truth_measured.jsonl
python -m benchmarks.truth_measured summary                     writes benchmarks/results/truth_measured.md
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import torch
from benchmarks.truth.journal import Journal
from benchmarks.truth.reasons import MEASURED_REASONS
from benchmarks.truth.recipes import InexpressibleError, recipe
from benchmarks.truth.rows import REPOSITORY, SHARED_TRUTH, Row, read_rows

JOURNAL = REPOSITORY / "target" / "truth_measured.jsonl"
TABLE = REPOSITORY / "benchmarks" / "results" / "truth_measured.md"
ROW_SECONDS = 300
MIB = 1 << 20
NOTABLE_PERCENT = 5.0
"""Rows further off are listed with a reason (issue 2)."""
QUANTITIES = {"allocated_peak": "allocated", "reserved_peak": "reserved", "device_peak": "nvidia-smi"}


def rows_by_id() -> dict[str, Row]:
    """Grade A rows by their id."""
    return {row["id"]: row for row in read_rows(SHARED_TRUTH / "measured.csv") if row["grade"] == "A"}


def measure(row: Row) -> dict[str, Any]:
    """Predict one row."""
    torch.set_num_threads(1)
    try:
        wanted = recipe(row)
    except InexpressibleError as error:
        return {"inexpressible": str(error)}
    spec = wanted.trace()
    report = wanted.estimate(spec)
    quantity = getattr(report, wanted.quantity)
    context = report.to_dict()["context"]
    return {
        "quantity": QUANTITIES[wanted.quantity],
        "ends_bytes": [quantity.low, quantity.likely, quantity.high],
        "reserved_bytes": report.reserved_peak.likely,
        "context_bytes": [context["low"], context["likely"], context["high"]],
        "target": f"{wanted.gpu}, {wanted.stack}",
        "assumed": wanted.assumed,
    }


def _line(row: Row, result: dict[str, Any]) -> str:
    what = row["model"].removeprefix("torchvision.models.").split(" (torchvision")[0]
    name = f"{what} b{row['batch_per_gpu']}"
    if "ends_bytes" not in result:
        measured = f"{row['quantity'][:24]} | {row['value_MiB']}"
        return f"| {row['id']} | {name} | {measured} | - | - | - | {_failure(result)} |"
    low, likely, high = (bytes_ / MIB for bytes_ in result["ends_bytes"])
    return (
        f"| {row['id']} | {name} | {result['quantity']} | {float(row['value_MiB']):,.1f} | {likely:,.1f} | "
        f"{_error(row, result):+.1f} % | {low:,.0f} to {high:,.0f} | {result['target']} |"
    )


def _failure(result: dict[str, Any]) -> str:
    return f"not expressible: {result['inexpressible']}" if "inexpressible" in result else f"failed: {result['error']}"


def _error(row: Row, result: dict[str, Any]) -> float:
    """Percent that the likely prediction is above the measurement."""
    measured = float(row["value_MiB"])
    return 100 * (float(result["ends_bytes"][1]) / MIB - measured) / measured


def _medians(done: list[tuple[Row, dict[str, Any]]]) -> list[str]:
    lines = [
        "| quantity | rows | median absolute error | largest | within 5 % | measured inside low..high |",
        "|---|---|---|---|---|---|",
    ]
    for quantity in QUANTITIES.values():
        chosen = [(row, result) for row, result in done if result.get("quantity") == quantity]
        if not chosen:
            continue
        errors = [abs(_error(row, result)) for row, result in chosen]
        inside = sum(
            result["ends_bytes"][0] <= float(row["value_MiB"]) * MIB <= result["ends_bytes"][2]
            for row, result in chosen
        )
        near = sum(error <= NOTABLE_PERCENT for error in errors)
        lines.append(
            f"| {quantity} | {len(chosen)} | {statistics.median(errors):.2f} % | {max(errors):.1f} % | "
            f"{near} of {len(chosen)} | {inside} of {len(chosen)} |"
        )
    return lines


def summary(journal: Journal) -> str:
    """The table as Markdown."""
    rows = rows_by_id()
    done = [(rows[key], result) for key, result in journal.results.items() if key in rows]
    done.sort(key=lambda pair: int(pair[0]["id"]))
    lines = [
        "# Values that others measured on real GPUs",
        "",
        f"`python -m benchmarks.truth_measured run`, then `summary`: {len(done)} of {len(rows)} grade A rows of",
        "`shared/truth/measured.csv` (sources there). Predicted = the likely figure; the ends are gpumem's own. What a",
        "row does not state (card, versions) is assumed as the last column says. Row 120 is not independent: its page",
        "of documentation is also where the V100's context figure comes from.",
        "",
        *_medians(done),
        "",
        "| id | model, batch | quantity | measured MiB | predicted MiB | error | low to high | target |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(row, result) for row, result in done),
        "",
        "## Off by more than 5 %",
        "",
    ]
    for row, result in done:
        if "ends_bytes" in result and abs(_error(row, result)) <= NOTABLE_PERCENT:
            continue
        what = f"{_error(row, result):+.1f} %" if "ends_bytes" in result else _failure(result)
        lines.append(f"- {row['id']} ({what}): {MEASURED_REASONS.get(row['id'], 'unexplained')}")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.truth_measured")
    parser.add_argument("action", choices=("run", "summary"))
    parser.add_argument("rows", nargs="*", help="ids of rows, default all")
    parser.add_argument("--again", choices=("none", "failed", "all"), default="none")
    arguments = parser.parse_args(argv)
    journal = Journal(JOURNAL)
    if arguments.action == "run":
        rows = rows_by_id()
        keys = arguments.rows or list(rows)
        journal.run(keys, lambda key: measure(rows[key]), ROW_SECONDS, arguments.again)
    TABLE.write_text(summary(journal), encoding="utf-8")
    print(f"wrote {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
