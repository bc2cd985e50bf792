"""gpumem against 576 recorded brackets: the batch that trained on an RTX 3090, and the next larger one that did not.

    python -m benchmarks.truth_brackets run [models ...] [--layout nchw|nhwc] [--every N] [--again failed|all]
    python -m benchmarks.truth_brackets ask              asks the traced specs again, after a change of the engine
    python -m benchmarks.truth_brackets virtual --every 40   runs both batches of a row on the virtual GPU
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
from benchmarks.truth.on_device import InBenchmarkMode, run_on
from benchmarks.truth.reasons import BRACKET_REASONS
from benchmarks.truth.rows import REPOSITORY, SHARED_TRUTH, Row, read_rows
from benchmarks.truth.timm_benchmark import GPU, STACK, build, keywords, step_of, trace

import gpumem
from gpumem._core import ModelSpec
from gpumem.validation import Session

JOURNAL = REPOSITORY / "target" / "truth_brackets.jsonl"
VIRTUAL = REPOSITORY / "target" / "truth_brackets_virtual.jsonl"
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


def run_virtually(row: Row) -> dict[str, Any]:
    """Both batches of a row on a virtual card of the recorded size; the context is the likely one of the software."""
    total = next(card.total_bytes for card in gpumem.gpus() if card.name == GPU)
    context = _spec(row, retrace=False).estimate(1, gpu=GPU, stack=STACK).to_dict()["context"]["likely"]
    answer: dict[str, Any] = {"context_bytes": context}
    with Session(f"virtual:{GPU}", budget=total, context=context, timeout=ROW_SECONDS) as session:
        for column in ("batch_fits", "batch_oom"):
            model = build(row)
            step = InBenchmarkMode(step_of(row, model))
            answer[column] = run_on(session, model, (1,), int(row[column]), {"step": step, **keywords(row)})
    return answer


def _virtual_lines(rows: dict[str, Row], found: dict[str, dict[str, Any]]) -> list[str]:
    """What the virtual card says of the rows that were run on it."""
    kept = {key: result for key, result in found.items() if key in rows and "error" not in result}
    if not kept:
        return []
    ran = sum(result["batch_fits"]["outcome"] == "ran" for result in kept.values())
    full = sum(result["batch_oom"]["outcome"] == "out of memory" for result in kept.values())
    context = next(iter(kept.values()))["context_bytes"] >> 20
    lines = [
        "## On the virtual GPU",
        "",
        f"`python -m benchmarks.truth_brackets virtual`: {len(kept)} of {len(rows)} rows, both batches run by",
        "unmodified PyTorch 2.14.1 in benchmark mode with its cuDNN's own workspaces, context the likely",
        f"{context} MiB.",
        f"The recorded batch ran in {_percent(ran, len(kept))}, the next one was out of memory in",
        f"{_percent(full, len(kept))}.",
        "",
    ]
    for key, result in kept.items():
        outcomes = [str(result[column]["outcome"]) for column in ("batch_fits", "batch_oom")]
        if outcomes != ["ran", "out of memory"]:
            recorded = f"{rows[key]['batch_fits']} to {rows[key]['batch_oom']}"
            lines.append(f"- {key}, {recorded}: {outcomes[0]}, {outcomes[1]}")
    lines += [f"- {key}: {result['error'][:150]}" for key, result in found.items() if "error" in result]
    return [*lines, ""]


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


def summary(journal: Journal, devices: Journal) -> str:
    """The result as Markdown."""
    rows = rows_by_key()
    results = [(rows[key], result) for key, result in journal.results.items() if key in rows]
    answered = [(row, result) for row, result in results if "largest" in result]
    if not answered:
        return "\n".join(_virtual_lines(rows, devices.results))
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
    lines += ["", *_virtual_lines(rows, devices.results)]
    lines += ["## Rows that miss", "", "Largest batch that gpumem finds at the low / likely / high end.", ""]
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
    parser.add_argument("action", choices=("run", "ask", "virtual", "summary"))
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
    devices = Journal(VIRTUAL)
    if arguments.action in ("run", "virtual"):
        chosen = [
            key
            for key, row in rows.items()
            if (not arguments.models or row["model"] in arguments.models) and arguments.layout in (None, row["layout"])
        ][:: arguments.every]
    if arguments.action == "run":
        journal.run(
            chosen,
            lambda key: measure(rows[key], retrace=arguments.retrace),
            ROW_SECONDS,
            "all" if arguments.retrace else arguments.again,
        )
    if arguments.action == "virtual":
        devices.run(chosen, lambda key: run_virtually(rows[key]), ROW_SECONDS, arguments.again)
    if not journal.results:
        # The committed table is of the estimator's rows.
        print(summary(journal, devices))
        return 0
    TABLE.write_text(summary(journal, devices), encoding="utf-8")
    print(f"wrote {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
