"""The wide sweep: every family in several settings against the virtual GPU, resumable, with a summary.

    PYTHONPATH=python python -m tests.parity.sweep run [tv timm hf nn unet misc op further] [--shard 0/2] [--again off]
    PYTHONPATH=python python -m tests.parity.sweep truth [...]      fill the cache of truths only
    PYTHONPATH=python python -m tests.parity.sweep summary          write benchmarks/results/parity.md and verified.txt

Results are JSON lines in target/parity-sweep*.jsonl; a case that is there is not run again unless `--again` says so
(`off`: what was not equal or failed; `all`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from gpumem.errors import BatchDependentError
from tests.parity import models, ours, virtual
from tests.parity.case import Case
from tests.parity.compare import Comparison, compare
from tests.parity.difference import differences
from tests.parity.selection import cases_of, further_cases, wide_models
from tests.parity.summary import RESULTS, read_results, write_summary

_FAMILIES = [*models.FAMILIES, "further"]
_CASE_SECONDS = 150


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def expired(signum: int, frame: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def measure(case: Case, loaded: models.LoadedModel) -> dict[str, Any]:
    """One line of the results: status, what is equal, and the first difference with stacks if the sequence is not."""
    line: dict[str, Any] = {"case": case.to_json(), "status": "ok"}
    try:
        truth = virtual.run(case)
    except virtual.ChildError as error:
        return {**line, "status": "truth failed", "error": str(error)[:600]}
    started = time.perf_counter()
    try:
        with _time_limit(_CASE_SECONDS):
            result = _compared(case, loaded)
            line["seconds"] = round(time.perf_counter() - started, 3)
    except Exception as error:
        return {**line, "status": "ours failed", "error": f"{type(error).__name__}: {str(error)[:400]}"}
    prediction = result.prediction
    line |= {
        "traced": prediction.traced_batches,
        "requested": result.requested_equal,
        "allocated": result.allocated_equal,
        "reserved": result.reserved_equal,
        "phases": result.phases_equal,
        "allocations": result.allocations_equal,
        "sequence": result.sequence_equal,
        "peaks": [
            [truth.requested_peak_bytes, truth.allocated_peak_bytes, truth.reserved_peak_bytes],
            [prediction.requested_peak_bytes, prediction.allocated_peak_bytes, prediction.reserved_peak_bytes],
        ],
        "events": len(truth.timeline.events),
    }
    if result.sequence_equal:
        line["ops"] = prediction.ops
    else:
        with contextlib.suppress(virtual.ChildError):
            stacks = virtual.run(case, stacks=True).timeline.trimmed()
            line["differences"] = differences(stacks, prediction.timeline.trimmed(), 2)
    return line


def _compared(case: Case, loaded: models.LoadedModel) -> Comparison:
    """Traced at as few sizes as give an equal sequence: the comparison at another one checks the polynomials.

    One sample has dimensions of size 1, which no polynomial through larger batches knows: it is traced itself. So are
    timm's models but in the richest setting, to keep a sweep of hundreds of architectures short.
    """
    richest = case.config.mode == "train" and case.config.precision == "amp-bf16"
    if case.batch == 1 or (case.model.startswith("timm:") and not richest):
        return compare(case, ours.extract(case, loaded, (case.batch,)))
    with contextlib.suppress(BatchDependentError):
        # Through two points every quadratic is a line, and wrong elsewhere: three sizes decide.
        result = compare(case, ours.extract(case, loaded, (2, 3)))
        return result if result.sequence_equal else compare(case, ours.extract(case, loaded))
    return compare(case, ours.extract(case, loaded, (case.batch,)))


def _verdict(line: dict[str, Any]) -> str:
    if line["status"] != "ok":
        return f"{line['status']}: {line['error'][:160]}"
    off = [
        name for name in ("requested", "allocated", "reserved", "phases", "allocations", "sequence") if not line[name]
    ]
    return "equal" if not off else "OFF: " + ", ".join(off)


def _work(families: list[str], shard: str) -> Iterator[tuple[str, list[tuple[str, Case]]]]:
    index, count = (int(part) for part in shard.split("/"))
    named = [family for family in families if family != "further"]
    work = [(reference, list(cases_of(reference))) for reference in wide_models(named)]
    if "further" in families:
        work += list(further_cases().items())
    yield from work[index::count]


def run(families: list[str], shard: str, again: str, truth_only: bool) -> None:
    """Run what is missing and append it to the results."""
    done: dict[str, str] = {}
    for line in read_results():
        equal = line["status"] == "ok" and line["sequence"]
        if again == "none" or (again == "off" and equal):
            done[f"{line['setting']} {line['case']}"] = line["status"]
    results = RESULTS.with_name(f"{RESULTS.stem}-{os.getpid()}.jsonl")
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as file:
        for reference, cases in _work(families, shard):
            missing = [(setting, case) for setting, case in cases if f"{setting} {case.to_json()}" not in done]
            if not missing:
                continue
            if truth_only:
                for _, case in missing:
                    with contextlib.suppress(virtual.ChildError):
                        virtual.run(case)
                continue
            try:
                with _time_limit(_CASE_SECONDS):
                    loaded = models.load(reference)
            except Exception as error:
                print(f"{reference}: not built: {type(error).__name__}: {str(error)[:200]}", flush=True)
                continue
            for setting, case in missing:
                line = {"setting": setting, "at": time.time(), **measure(case, loaded)}
                file.write(json.dumps(line) + "\n")
                file.flush()
                print(f"{setting:28} {case.label()}: {_verdict(line)}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.sweep", description=__doc__.split("\n")[0])
    parser.add_argument("action", choices=("run", "truth", "summary"))
    # No `choices`: argparse checks an absent list against them as one value.
    parser.add_argument("families", nargs="*", help=f"of {', '.join(_FAMILIES)}; all when none is named")
    parser.add_argument("--shard", default="0/1", help="part i of n, as i/n")
    parser.add_argument("--again", choices=("none", "off", "all"), default="none")
    arguments = parser.parse_args(argv)
    families = arguments.families or _FAMILIES
    unknown = set(families) - set(_FAMILIES)
    if unknown:
        parser.error(f"unknown families {sorted(unknown)}, known: {', '.join(_FAMILIES)}")
    torch.set_num_threads(1)
    if arguments.action == "summary":
        write_summary()
    else:
        run(families, arguments.shard, arguments.again, arguments.action == "truth")
    return 0


if __name__ == "__main__":
    sys.exit(main())
