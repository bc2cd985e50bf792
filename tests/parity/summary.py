"""From the sweep's results to `benchmarks/results/parity.md` and to the list of verified ops."""

from __future__ import annotations

import collections
import importlib.metadata
import json
import re
from typing import Any

from tests.parity.case import Case
from tests.parity.selection import BATCH, SETTINGS, cases_of, further_cases, wide_models
from tests.parity.virtual import ROOT

RESULTS = ROOT / "target" / "parity-sweep.jsonl"
REPORT = ROOT / "benchmarks" / "results" / "parity.md"
VERIFIED = ROOT / "python" / "gpumem" / "extraction" / "ops" / "verified.txt"
_FAMILY_TITLES = {
    "tv": "torchvision",
    "timm": "timm",
    "hf": "transformers, chosen",
    "zoo": "transformers, every model type that its default configuration can build (two layers)",
    "nn": "torch.nn",
    "unet": "U-Nets",
    "misc": "custom code",
    "op": "one-op nets",
}
_MOST_NAMES = 6
_VALUES = """The virtual GPU reads zeros where a run has values. Of the model types that nobody chose, those differ that
mask random spans (wav2vec2 and its kin: no element under the mask there), test for infinity in a Python branch (DETR:
not finite there), or choose experts by what they read: the estimate follows what a run reads, as its report says. What
HuBERT and its kin drop by chance is another layer in each run."""


def read_results() -> list[dict[str, Any]]:
    """The last line of each case, from the files of all processes."""
    lines: list[dict[str, Any]] = []
    for path in sorted(RESULTS.parent.glob(f"{RESULTS.stem}*.jsonl")):
        # A last line without an end is being written.
        lines += [
            json.loads(text) for text in path.read_text(encoding="utf-8").splitlines(keepends=True) if text[-1] == "\n"
        ]
    lines.sort(key=lambda line: float(line.get("at", 0.0)))
    return list({f"{line['setting']} {line['case']}": line for line in lines}.values())


def _family(line: dict[str, Any]) -> str:
    return str(json.loads(line["case"])["model"]).partition(":")[0]


def _label(line: dict[str, Any]) -> str:
    return Case.from_json(line["case"]).label()


def _percent(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else "0"


def _row(title: str, lines: list[dict[str, Any]]) -> str:
    """Cases that the virtual GPU could not run are counted apart and are not in the percentages."""
    run = [line for line in lines if line["status"] != "truth failed"]
    extracted = [line for line in run if line["status"] == "ok"]
    requested = sum(line["requested"] for line in extracted)
    simulated = sum(line["allocated"] and line["reserved"] for line in extracted)
    sequence = sum(line["sequence"] for line in extracted)
    off = sum(not (line["requested"] and line["allocated"] and line["reserved"]) for line in extracted)
    cells = [
        title,
        str(len(run)),
        _percent(len(extracted), len(run)),
        _percent(requested, len(run)),
        _percent(simulated, len(run)),
        _percent(sequence, len(run)),
        str(off),
        str(len(lines) - len(run)),
    ]
    return "| " + " | ".join(cells) + " |"


_HEADER = (
    "| {} | cases | extracted | requested peak equal | allocated and reserved peaks equal | full sequence equal "
    "| a peak off | not run by the virtual GPU |\n|---|---|---|---|---|---|---|---|"
)


def _table(head: str, groups: dict[str, list[dict[str, Any]]]) -> list[str]:
    return [_HEADER.format(head), *(_row(name, lines) for name, lines in groups.items()), ""]


def _grouped(lines: list[dict[str, Any]], key: Any) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for line in lines:
        groups[key(line)].append(line)
    return dict(groups)


def signature(line: dict[str, Any]) -> str:
    """Where the first difference is: CUDA's first frames, or else our op."""
    texts = line.get("differences") or ["(no difference recorded)"]
    text = str(texts[0])
    if text.startswith("phases differ"):
        return "the steps differ: layers are dropped at random on the host, so no traced step is the next one"
    if text.startswith("free of allocation"):
        op = re.search(r"bytes, (\S+) @", text)
        return f"free at another place: {op.group(1) if op else '?'}"
    cuda = re.search(r"cuda +[\d,]+  ([^|\n]*)", text)
    mine = re.search(r"ours +[\d,]+  (\S+) @", text)
    after = re.search(r"after ours (\S+) @", text)
    frames = [frame for frame in (cuda.group(1).split(" < ") if cuda else []) if "empty" not in frame]
    words = []
    if frames:
        words.append("CUDA requests in `" + " < ".join(frames[:3]).strip() + "`")
    if mine:
        words.append(f"ours requests in `{mine.group(1)}`")
    if not frames and after:
        words.append(f"after `{after.group(1)}`")
    return "; ".join(words) or "(not located)"


def _causes(lines: list[dict[str, Any]]) -> list[str]:
    text = []
    off = [line for line in lines if line["status"] == "ok" and not line["sequence"]]
    groups = sorted(_grouped(off, signature).items(), key=lambda item: -len(item[1]))
    text.append("| first difference | cases | of them a peak is off | examples |\n|---|---|---|---|")
    for name, members in groups:
        peaks = sum(not (line["requested"] and line["allocated"] and line["reserved"]) for line in members)
        examples = "; ".join(dict.fromkeys(_label(line) for line in members[: 3 * _MOST_NAMES : 3]))
        text.append(f"| {name.replace('|', '/')} | {len(members)} | {peaks} | {examples} |")
    return [*text, ""]


def _failures(lines: list[dict[str, Any]], status: str) -> list[str]:
    failed = [line for line in lines if line["status"] == status]
    groups = _grouped(failed, lambda line: str(line["error"]).splitlines()[0][:140])
    rows = [
        f"| {error.replace('|', '/')} | {len(members)} | "
        f"{'; '.join(dict.fromkeys(json.loads(line['case'])['model'] for line in members[:_MOST_NAMES]))} |"
        for error, members in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
    return ["| error | cases | models |\n|---|---|---|", *rows, ""]


def _largest_errors(lines: list[dict[str, Any]]) -> list[str]:
    """Cases by relative error of a peak."""
    rows = []
    for line in lines:
        if line["status"] == "ok" and not (line["requested"] and line["allocated"] and line["reserved"]):
            errors = [(mine - true) / true for true, mine in zip(*line["peaks"], strict=True)]
            rows.append((max(map(abs, errors)), _label(line), errors))
    text = ["| case | requested | allocated | reserved |\n|---|---|---|---|"]
    for _, name, errors in sorted(rows, reverse=True)[:60]:
        text.append(
            f"| {name} | " + " | ".join(f"{100 * error:+.3f} %" if error else "equal" for error in errors) + " |"
        )
    return [*text, ""]


def _selected() -> set[str]:
    cases = [case for reference in wide_models(list(_FAMILY_TITLES)) for case in cases_of(reference)]
    cases += [case for further in further_cases().values() for case in further]
    return {f"{setting} {case.to_json()}" for setting, case in cases}


def write_summary() -> None:
    """Write the report and the list of verified ops."""
    selected = _selected()
    # What an earlier selection ran is left out.
    lines = [line for line in read_results() if f"{line['setting']} {line['case']}" in selected]
    known = set(SETTINGS)
    common = [line for line in lines if line["setting"] in known]
    networks = [line for line in common if _family(line) != "op"]
    further = [line for line in lines if line["setting"] not in known]
    text = [
        "# Parity with the virtual GPU",
        "",
        "Written by `python -m tests.parity.sweep summary` from the results of `... sweep run`; do not edit.",
        "",
        "Truth: unmodified CUDA PyTorch on the virtual GPU (rtx3090 profile, cuDNN stub with workspace 0, 200 GB),",
        "three steps from an empty allocator. Ours: `gpumem.extract` at batch 2, 3 (and 5), the core's timeline and",
        f"simulated allocator at batch {BATCH} (or as stated). Peaks are equal to the byte or not equal. A sequence is",
        "equal when every allocation size in order and every free are; frees between two allocations count as a set.",
        f"timm's models are traced at batch {BATCH} itself except in amp-bf16 training; batch 1 always is.",
        f"Versions: {versions()}.",
        "",
        "## All",
        "",
        *_table("", _grouped(lines, lambda line: "one-op nets" if _family(line) == "op" else "networks")),
        "## Networks by setting, all families",
        "",
        *_table("setting", _grouped(networks, lambda line: line["setting"])),
    ]
    for family, title in _FAMILY_TITLES.items():
        members = [line for line in common if _family(line) == family]
        if members:
            count = len({json.loads(line["case"])["model"] for line in members})
            text += [f"## {title}: {count} models", ""]
            text += _table("setting", _grouped(members, lambda line: line["setting"]))
    if further:
        text += ["## Optimizers, loops, precisions, batches", ""]
        text += _table("setting", _grouped(further, lambda line: line["setting"]))
    text += ["## Sequences that differ, by first difference", "", _VALUES, "", *_causes(lines)]
    text += ["## Peaks that are off", "", *_largest_errors(lines)]
    text += ["## Not extracted", "", *_failures(lines, "ours failed")]
    text += ["## Not run by the virtual GPU", "", *_failures(lines, "truth failed")]
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text("\n".join(text), encoding="utf-8")
    ops = sorted({op for line in lines for op in line.get("ops", []) if op.startswith("aten.")})
    header = "# Written by the parity sweep: ops of runs whose event sequence equals the virtual GPU's."
    VERIFIED.write_text("\n".join([header, *ops, ""]), encoding="ascii")


def versions() -> str:
    """Versions of what was compared."""
    names = ("torch", "torchvision", "timm", "transformers", "peft")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
