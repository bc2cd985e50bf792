"""gpumem against values that others measured on real GPUs (`measured.csv`, grade A).

python -m benchmarks.truth_measured run [--again failed|all]    resumable; results in target/truth_measured.jsonl
python -m benchmarks.truth_measured virtual                     the same programs on the virtual GPU; resumable too
python -m benchmarks.truth_measured summary                     writes benchmarks/results/truth_measured.md
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import torch
from benchmarks.truth.journal import Journal
from benchmarks.truth.on_device import run_on
from benchmarks.truth.reasons import MEASURED_REASONS
from benchmarks.truth.recipes import InexpressibleError, recipe
from benchmarks.truth.rows import REPOSITORY, SHARED_TRUTH, Row, read_rows

from gpumem.validation import Session

JOURNAL = REPOSITORY / "target" / "truth_measured.jsonl"
VIRTUAL = REPOSITORY / "target" / "truth_measured_virtual.jsonl"
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


def run_virtually(row: Row) -> dict[str, Any]:
    """One row's program on a virtual card; what its script computes before the loop is left out."""
    try:
        wanted = recipe(row)
    except InexpressibleError as error:
        return {"inexpressible": str(error)}
    with Session(f"virtual:{wanted.gpu}", timeout=ROW_SECONDS) as session:
        return run_on(session, wanted.model, wanted.input, wanted.batch, wanted.extract)


def _device_error(row: Row, result: dict[str, Any], device: dict[str, Any] | None) -> float | None:
    """Percent that the virtual card is above the measurement; its context is the prediction's for the software."""
    if device is None or device.get("outcome") != "ran":
        return None
    quantity = result["quantity"]
    bytes_ = device[quantity]
    if quantity == "nvidia-smi":
        bytes_ = device["reserved"] + result["context_bytes"][1]
    measured = float(row["value_MiB"]) * MIB
    return 100 * (float(bytes_) - measured) / measured


def _device_text(row: Row, result: dict[str, Any], device: dict[str, Any] | None) -> str:
    error = _device_error(row, result, device)
    if error is not None:
        return f"{error:+.1f} %"
    return "-" if device is None else str(device.get("outcome") or device.get("error"))[:60]


def _line(row: Row, result: dict[str, Any], device: dict[str, Any] | None) -> str:
    what = row["model"].removeprefix("torchvision.models.").split(" (torchvision")[0]
    name = f"{what} b{row['batch_per_gpu']}"
    if "ends_bytes" not in result:
        measured = f"{row['quantity'][:24]} | {row['value_MiB']}"
        return f"| {row['id']} | {name} | {measured} | - | - | - | - | {_failure(result)} |"
    low, likely, high = (bytes_ / MIB for bytes_ in result["ends_bytes"])
    return (
        f"| {row['id']} | {name} | {result['quantity']} | {float(row['value_MiB']):,.1f} | {likely:,.1f} | "
        f"{_error(row, result):+.1f} % | {low:,.0f} to {high:,.0f} | {_device_text(row, result, device)} | "
        f"{result['target']} |"
    )


def _failure(result: dict[str, Any]) -> str:
    return f"not expressible: {result['inexpressible']}" if "inexpressible" in result else f"failed: {result['error']}"


def _error(row: Row, result: dict[str, Any]) -> float:
    """Percent that the likely prediction is above the measurement."""
    measured = float(row["value_MiB"])
    return 100 * (float(result["ends_bytes"][1]) / MIB - measured) / measured


def _medians(done: list[tuple[Row, dict[str, Any]]], devices: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "| of | quantity | rows | median absolute error | largest | under | within 5 % | measured inside low..high |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for quantity in QUANTITIES.values():
        chosen = [(row, result) for row, result in done if result.get("quantity") == quantity]
        if not chosen:
            continue
        errors = [_error(row, result) for row, result in chosen]
        inside = sum(
            result["ends_bytes"][0] <= float(row["value_MiB"]) * MIB <= result["ends_bytes"][2]
            for row, result in chosen
        )
        lines.append(f"| estimate | {_of(quantity, errors)} {inside} of {len(chosen)} |")
        found = [_device_error(row, result, devices.get(row["id"])) for row, result in chosen]
        there = [error for error in found if error is not None]
        if there:
            lines.append(f"| virtual GPU | {_of(quantity, there)} |")
    return lines


def _of(quantity: str, errors: list[float]) -> str:
    sizes = [abs(error) for error in errors]
    under, near = sum(error < 0 for error in errors), sum(size <= NOTABLE_PERCENT for size in sizes)
    return (
        f"{quantity} | {len(errors)} | {statistics.median(sizes):.2f} % | {max(sizes):.1f} % | "
        f"{under} of {len(errors)} | {near} of {len(errors)} |"
    )


def summary(journal: Journal, devices: dict[str, dict[str, Any]]) -> str:
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
        "Virtual GPU: the same program on unmodified PyTorch 2.14.1 with its cuDNN's own plans for the card;",
        "nvidia-smi figures are its reserved bytes with the likely context of the row's software, as the estimate's",
        "are. Cards that this PyTorch does not know any more (compute capability below 7.5) are not run.",
        "",
        *_medians(done, devices),
        "",
        "| id | model, batch | quantity | measured MiB | predicted MiB | error | low to high | virtual GPU | target |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(row, result, devices.get(row["id"])) for row, result in done),
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
    parser.add_argument("action", choices=("run", "virtual", "summary"))
    parser.add_argument("rows", nargs="*", help="ids of rows, default all")
    parser.add_argument("--again", choices=("none", "failed", "all"), default="none")
    arguments = parser.parse_args(argv)
    journal = Journal(JOURNAL)
    if arguments.action == "run":
        rows = rows_by_id()
        keys = arguments.rows or list(rows)
        journal.run(keys, lambda key: measure(rows[key]), ROW_SECONDS, arguments.again)
    devices = Journal(VIRTUAL)
    if arguments.action == "virtual":
        rows = rows_by_id()
        devices.run(arguments.rows or list(rows), lambda key: run_virtually(rows[key]), ROW_SECONDS, arguments.again)
    TABLE.write_text(summary(journal, devices.results), encoding="utf-8")
    print(f"wrote {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
