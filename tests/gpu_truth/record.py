"""Records what a GPU does in memory, in one call.

    python -m tests.gpu_truth.record --out DIR [--seconds 400] [--only TEXT ...] [--again]

On a machine with a CUDA card and PyTorch; torchvision, timm and transformers are used where they are installed. Under
`gpumem run --gpu h200 -m tests.gpu_truth.record ...` it is a rehearsal. Every thing to record runs in another process,
so that a crash or a hang loses no more than itself, and is written down as soon as it is done: called again with the
same DIR, it goes on where it was. CONTRIBUTING.md has the call for a session that is lent a card.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.gpu_truth.cases import BRACKETS, LAYERS, LOOPS, TIMES, Bracket, Case
from tests.gpu_truth.hands import Hands, LostError, OutOfTimeError
from tests.gpu_truth.jobs import STEPS
from tests.gpu_truth.recording import DATA, Line, RecordingError, Writer
from tests.gpu_truth.search import largest_batch

ITEM_SECONDS = 90
"""No single run may take longer."""

LAST_SECONDS = 3
"""With less left nothing new is begun."""

TIMED_STEPS = 10
MIB = 1 << 20
_LIBRARIES = ("torchvision", "timm", "transformers", "triton", "numpy")


@dataclass(frozen=True)
class Item:
    """One thing to record.

    Attributes:
        kind: `context`, `loop`, `bracket` or `times`.
        name: For the file and for progress.
        case: What it is about, if it is about a loop.
        run: Records it; the result becomes a line.
    """

    kind: str
    name: str
    case: Case | None
    run: Callable[[], dict[str, Any]]


class Recorder:
    """Knows how each kind is recorded.

    Args:
        deadline: `time.monotonic()` at which to stop.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.hands = Hands(deadline)

    def items(self) -> Iterator[Item]:
        """Everything, the most valuable first."""
        yield self._context("lazy")
        loops, layers = [*map(self._loop, LOOPS)], [*map(self._loop, LAYERS)]
        yield from loops[:20]
        yield from map(self._bracket, BRACKETS[:4])
        yield from layers
        yield self._context("eager")
        yield from map(self._times, TIMES)
        yield from loops[20:]
        yield from map(self._bracket, BRACKETS[4:])

    def _context(self, loading: str) -> Item:
        def run() -> dict[str, Any]:
            variables = {"CUDA_MODULE_LOADING": loading.upper()}
            with Hands(self.deadline, "context", variables) as hands:
                return hands.hello(ITEM_SECONDS)

        return Item("context", f"context, kernels loaded {loading}", None, run)

    def _loop(self, case: Case) -> Item:
        return Item("loop", case.name, case, lambda: self._run(case))

    def _times(self, case: Case) -> Item:
        return Item("times", f"times: {case.name}", case, lambda: self._run(case, steps=TIMED_STEPS, keep=False))

    def _bracket(self, bracket: Bracket) -> Item:
        def run() -> dict[str, Any]:
            def outcome(batch: int) -> str:
                case = replace(bracket.case, batch=batch)
                found = self._run(case, allowed_bytes=bracket.limit_bytes, keep=False)
                return str(found["measurement"]["outcome"]) if "measurement" in found else str(found["error"])

            largest, tries = largest_batch(bracket.case.batch, outcome)
            answer: dict[str, Any] = {
                "limit_bytes": bracket.limit_bytes,
                "largest": largest,
                "tries": sorted(tries.items()),
            }
            if largest:
                # How the allocator gets through at the limit, and how it fails: with every event.
                ends = {"fits": largest, "fails": largest + 1}
                for name, batch in ends.items():
                    case = replace(bracket.case, batch=batch)
                    answer[name] = self._run(case, allowed_bytes=bracket.limit_bytes)
            return answer

        return Item("bracket", bracket.name, bracket.case, run)

    def _run(
        self, case: Case, *, steps: int = STEPS, allowed_bytes: int | None = None, keep: bool = True
    ) -> dict[str, Any]:
        request = {"case": case.to_dict(), "steps": steps, "allowed_bytes": allowed_bytes, "keep": keep}
        try:
            return self.hands.ask(request, ITEM_SECONDS)
        except LostError as lost:
            return {"error": str(lost)}


def _versions() -> dict[str, str]:
    installed = (name for name in _LIBRARIES if importlib.util.find_spec(name) is not None)
    return {name: importlib.metadata.version(name) for name in installed}


def _missing(case: Case | None) -> bool:
    if case is None:
        return False
    library = "transformers" if case.model.endswith(":small_llama") else case.library
    return library in ("torchvision", "timm", "transformers") and importlib.util.find_spec(library) is None


def _said(line: Line) -> str:
    """The rest of a progress line."""
    if "error" in line:
        return str(line["error"]).splitlines()[0][:150]
    if line["kind"] == "context":
        first, last = line["steps"][0]["outside_bytes"], line["steps"][-1]["outside_bytes"]
        failed = sum("error" in row for row in line["steps"])
        return f"outside {first / MIB:.0f} MiB, after all kernels {last / MIB:.0f} MiB; {failed} failed"
    if line["kind"] == "bracket":
        return f"{line['largest']}, {len(line['tries'])} tries"
    measured = line["measurement"]
    if not measured["steps"]:
        return f"{measured['outcome']}: {measured['message'][:120]}"
    peaks = {name: max(step[f"{name}_bytes"] for step in measured["steps"]) for name in ("requested", "reserved")}
    last = measured["steps"][-1]
    time_text = "" if last["seconds"] is None else f", {1000 * last['seconds']:.1f} ms"
    text = f"requested {peaks['requested'] / MIB:.1f}, reserved {peaks['reserved'] / MIB:.0f}"
    return f"{measured['outcome']}, {text}, outside {last['outside_bytes'] / MIB:.0f} MiB{time_text}"


def record(folder: Path, seconds: float, *, only: Sequence[str] = (), again: bool = False) -> int:
    """Record into `folder`.

    Args:
        folder: Where; what is there is not recorded again.
        seconds: Time for everything.
        only: Texts, of which the names of what is recorded have one; none for everything.
        again: Whether what failed before is tried once more.

    Returns:
        How many things are still to be recorded.

    Raises:
        RecordingError: no device, or a folder with something else in it.
    """
    started = time.monotonic()
    recorder = Recorder(started + seconds)
    with recorder.hands as hands:
        try:
            card = hands.hello(ITEM_SECONDS)
        except (LostError, OutOfTimeError) as error:
            raise RecordingError(f"PyTorch does not start on the device: {error}") from error
        if "error" in card:
            raise RecordingError(card["error"])
        writer = Writer(folder, {**card, "libraries": _versions()})
        print(f"{card['name']}, torch {card['torch']}, driver {card['driver'] or 'virtual'}", flush=True)
        wanted = [item for item in recorder.items() if not only or any(text in item.name for text in only)]
        skipped = [item.name for item in wanted if _missing(item.case)]
        todo = [
            item
            for item in wanted
            if item.name not in skipped
            and (item.name not in writer.done or (again and "error" in writer.done[item.name]))
        ]
        left = _record_all(todo, len(wanted), recorder, writer, started)
    for name in skipped:
        print(f"SKIPPED, its library is not installed: {name}", flush=True)
    print(f"{len(writer.done)} recorded, {left} left, {len(skipped)} skipped: {folder}", flush=True)
    if not card["virtual"]:
        slug = f"{card['name']}-torch-{card['torch']}".lower().replace(" ", "-").replace("+", "-")
        print(f"keep it as {DATA / slug}", flush=True)
    return left


def _record_all(todo: list[Item], count: int, recorder: Recorder, writer: Writer, started: float) -> int:
    number = count - len(todo)
    for position, item in enumerate(todo):
        if recorder.deadline - time.monotonic() < LAST_SECONDS:
            return len(todo) - position
        began = time.monotonic()
        try:
            answer = item.run()
        except LostError as lost:
            answer = {"error": str(lost)}
        except OutOfTimeError:
            return len(todo) - position
        line: Line = {"name": item.name, "kind": item.kind}
        if item.case is not None:
            line["case"] = item.case.to_dict()
        line |= {"took_s": round(time.monotonic() - began, 2), **answer}
        size = writer.add(line)
        at = time.monotonic() - started
        print(f"{at:6.1f} s {number + position + 1:3}/{count} {item.name}: {_said(line)} ({size} bytes)", flush=True)
    return 0


def main(argv: list[str] | None = None) -> int:
    """The command: 0 when everything is recorded, 3 when time was up before."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_truth.record", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--again", action="store_true")
    arguments = parser.parse_args(argv)
    try:
        left = record(arguments.out, arguments.seconds, only=arguments.only, again=arguments.again)
    except RecordingError as error:
        print(error, file=sys.stderr)
        return 2
    return 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
