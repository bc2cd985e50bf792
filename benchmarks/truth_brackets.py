"""gpumem against 576 recorded brackets: the batch that trained on an RTX 3090, and the next larger one that did not.

    python -m benchmarks.truth_brackets run [models ...] [--layout nchw|nhwc] [--every N] [--again failed|all]
    python -m benchmarks.truth_brackets ask              asks the traced specs again, after a change of the engine
    python -m benchmarks.truth_brackets summary          writes benchmarks/results/truth_brackets.md

Resumable: answers in target/truth_brackets.jsonl, traced specs in target/truth_brackets/; `--retrace` traces again.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.truth.journal import Journal
from benchmarks.truth.reasons import BRACKET_REASONS
from benchmarks.truth.rows import REPOSITORY, SHARED_TRUTH, Row, read_rows
from benchmarks.truth.timm_benchmark import GPU, STACK, trace

from gpumem._core import ModelSpec

JOURNAL = REPOSITORY / "target" / "truth_brackets.jsonl"
SPECS = REPOSITORY / "target" / "truth_brackets"
TABLE = REPOSITORY / "benchmarks" / "results" / "truth_brackets.md"
ROW_SECONDS = 300
ENDS = ("low", "likely", "high")
TARGET_FITS_PERCENT = 98
TARGET_OOM_PERCENT = 90


def rows_by_key() -> dict[str, Row]:
    """Rows by model and layout."""
    return {f"{row['model']} {row['layout']}": row for row in read_rows(SHARED_TRUTH / "timm_train_brackets.csv")}


def _spec_path(row: Row) -> Path:
    # Several rows are one architecture with other weights.
    return SPECS / f"{row['timm_now']}-{row['img_size']}-{row['layout']}.json.gz"


def _spec(row: Row, *, retrace: bool) -> ModelSpec:
    path = _spec_path(row)
    if path.exists() and not retrace:
        return ModelSpec.from_json(gzip.decompress(path.read_bytes()).decode())
    spec = trace(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(spec.to_json().encode(), 1))
    return spec


def ask(spec: ModelSpec, row: Row) -> dict[str, Any]:
    """The largest batch at each end of the context, and without convolution workspaces at its high end.

    timm's script sets `torch.backends.cudnn.benchmark` (shared/truth/README.md).
    """
    context = spec.estimate(int(row["batch_fits"]), gpu=GPU, stack=STACK).to_dict()["context"]
    largest = {end: spec.max_batch(gpu=GPU, stack=STACK, context=context[end], cudnn_benchmark=True) for end in ENDS}
    return {
        "context_bytes": context,
        "largest": largest,
        "largest_without_workspaces": spec.max_batch(
            gpu=GPU, stack=STACK, context=context["high"], library_workspaces=False, cudnn_benchmark=True
        ),
        "unverified": spec.estimate(1 + int(row["batch_fits"]), gpu=GPU, stack=STACK).unsupported,
    }


def measure(row: Row, *, retrace: bool) -> dict[str, Any]:
    """Trace one row and ask."""
    started = time.perf_counter()
    spec = _spec(row, retrace=retrace)
    traced = time.perf_counter() - started
    return {**ask(spec, row), "seconds": round(traced, 2)}


def _share(results: Sequence[tuple[Row, dict[str, Any]]], largest: str) -> tuple[int, int]:
    """Rows whose recorded batch fits, and whose next one does not, for one way of asking."""
    answers = [
        (row, result["largest"][largest] if largest in ENDS else result[largest])
        for row, result in results
        if "largest" in result
    ]
    fits = sum(answer >= int(row["batch_fits"]) for row, answer in answers)
    oom = sum(answer < int(row["batch_oom"]) for row, answer in answers)
    return fits, oom


def _percent(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else "-"


def _ways(context: dict[str, int]) -> dict[str, str]:
    mib = {end: context[end] >> 20 for end in ENDS}
    return {
        "high": f"`fits` as it answers (upper end: context {mib['high']} MiB)",
        "likely": f"context at its likely figure, {mib['likely']} MiB",
        "low": f"context at its low end, {mib['low']} MiB",
        "largest_without_workspaces": f"upper end, no convolution workspaces (context {mib['high']} MiB)",
    }


def summary(journal: Journal) -> str:
    """The result as Markdown."""
    rows = rows_by_key()
    results = [(rows[key], result) for key, result in journal.results.items() if key in rows]
    answered = [(row, result) for row, result in results if "largest" in result]
    if not answered:
        return "nothing was run yet\n"
    # The last answer's: a resumed run may hold some of an older table of contexts, until `ask`.
    ways = _ways(answered[-1][1]["context_bytes"])
    lines = [
        "# Batches that trained on an RTX 3090, and the next larger ones that did not",
        "",
        f"`python -m benchmarks.truth_brackets run`, then `summary`: {len(answered)} of {len(rows)} rows answered,",
        f"{len(results) - len(answered)} without an answer. Source: `shared/truth/timm_train_brackets.csv` (timm's",
        "benchmark, torch 1.12 + CUDA 11.3, AMP, cudnn.benchmark). Traced with torch 2.14, asked with",
        f"`cudnn_benchmark=True` for `{GPU}` and `{STACK}`.",
        f"Wanted: the recorded batch fits in {TARGET_FITS_PERCENT} % of rows, the next one fails in",
        f"{TARGET_OOM_PERCENT} %.",
        "",
        "| asked | layout | rows | recorded batch fits | next batch does not fit |",
        "|---|---|---|---|---|",
    ]
    for way, text in ways.items():
        for layout in ("nchw", "nhwc", "both"):
            chosen = [(row, result) for row, result in answered if layout in ("both", row["layout"])]
            fits, oom = _share(chosen, way)
            lines.append(
                f"| {text} | {layout} | {len(chosen)} | {_percent(fits, len(chosen))} | {_percent(oom, len(chosen))} |"
            )
    lines += ["", "## Rows that miss", "", "Largest batch that gpumem finds at the low / likely / high end.", ""]
    lines += ["| model | layout | recorded | largest | miss | cause |", "|---|---|---|---|---|---|"]
    for row, result in answered:
        largest = result["largest"]
        below = largest["high"] < int(row["batch_fits"])
        above = largest["high"] >= int(row["batch_oom"])
        if not (below or above):
            continue
        found = " / ".join(str(largest[end]) for end in ENDS)
        miss = "does not fit" if below else "next fits"
        cause = BRACKET_REASONS.get(row["model"], "unexplained")
        recorded = f"{row['batch_fits']} to {row['batch_oom']}"
        lines.append(f"| {row['model']} | {row['layout']} | {recorded} | {found} | {miss} | {cause} |")
    failed = [(row, result) for row, result in results if "largest" not in result]
    lines += ["", "## Rows without an answer", "", *(["none"] if not failed else [])]
    lines += [f"- {row['model']} {row['layout']}: {result['error']}" for row, result in failed]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.truth_brackets")
    parser.add_argument("action", choices=("run", "ask", "summary"))
    parser.add_argument("models", nargs="*", help="default: all")
    parser.add_argument("--layout", choices=("nchw", "nhwc"))
    parser.add_argument("--every", type=int, default=1, help="only every n-th row")
    parser.add_argument("--again", choices=("none", "failed", "all"), default="none")
    parser.add_argument("--retrace", action="store_true")
    arguments = parser.parse_args(argv)
    journal = Journal(JOURNAL)
    rows = rows_by_key()
    if arguments.action == "ask":
        traced = [key for key, row in rows.items() if _spec_path(row).exists()]
        journal.run(traced, lambda key: measure(rows[key], retrace=False), ROW_SECONDS, "all")
    if arguments.action == "run":
        chosen = [
            key
            for key, row in rows.items()
            if (not arguments.models or row["model"] in arguments.models) and arguments.layout in (None, row["layout"])
        ][:: arguments.every]
        journal.run(
            chosen,
            lambda key: measure(rows[key], retrace=arguments.retrace),
            ROW_SECONDS,
            "all" if arguments.retrace else arguments.again,
        )
    TABLE.write_text(summary(journal), encoding="utf-8")
    print(f"wrote {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
