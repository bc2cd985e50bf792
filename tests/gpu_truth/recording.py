"""A recording: a folder with `card.json` and up to seven files of lines of JSON, each line one thing that was recorded.

Lines are only ever added, so that a run that is cut off leaves what it finished and the next one goes on from there.
Eight files and no folders: what the device machine of this workplace brings back from one run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data" / "gpu"
"""Where recordings of real cards are kept; each in a folder named after its card and PyTorch."""

REHEARSAL = "rehearsal-"
"""How the name of a folder there begins that holds a virtual card's."""

FORMAT = 1
FILE_BYTES = 700_000
FILES = 7
_SAME = ("virtual", "name", "total_bytes", "torch", "cuda", "cudnn", "driver")

Line = dict[str, Any]


class RecordingError(Exception):
    """A folder that cannot be what it should be; the text says what to do."""


@dataclass(frozen=True)
class Recording:
    """A folder.

    Attributes:
        folder: Its path.
        card: The device and its software (`card.json`).
        lines: What was recorded, by name, in order.
    """

    folder: Path
    card: dict[str, Any]
    lines: dict[str, Line]

    @property
    def is_virtual(self) -> bool:
        """Whether it was made on gpumem's virtual GPU, a rehearsal."""
        return bool(self.card["virtual"])

    def of(self, kind: str) -> Iterator[Line]:
        """Lines of a kind: `context`, `loop`, `bracket` or `times`."""
        return (line for line in self.lines.values() if line["kind"] == kind)


def read(folder: Path) -> Recording:
    """Read a recording.

    Raises:
        RecordingError: it is none, or a virtual one among the real ones.
    """
    file = folder / "card.json"
    if not file.is_file():
        raise RecordingError(f"{folder} has no card.json: it is no recording")
    card = json.loads(file.read_text(encoding="utf-8"))
    if card.get("format") != FORMAT:
        raise RecordingError(f"{file} has the format {card.get('format')}; this version reads {FORMAT}")
    if card["virtual"] and folder.resolve().parent == DATA and not folder.name.startswith(REHEARSAL):
        raise RecordingError(f"{folder} was made on a virtual GPU: only real ones are kept there ({REHEARSAL}* aside)")
    lines: dict[str, Line] = {}
    for file in _files(folder):
        for text in file.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            lines[line["name"]] = line
    return Recording(folder, card, lines)


def recordings() -> list[Path]:
    """Folders of the recordings that are kept."""
    return sorted(file.parent for file in DATA.glob("*/card.json"))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("recorded-*.jsonl"))


class Writer:
    """Adds to a recording.

    Args:
        folder: Where; made if it is not there.
        card: What `card.json` is to say.

    Raises:
        RecordingError: the folder has the recording of another card or other software, or is the place of real ones.
    """

    def __init__(self, folder: Path, card: dict[str, Any]) -> None:
        if card["virtual"] and DATA in folder.resolve().parents and not folder.name.startswith(REHEARSAL):
            raise RecordingError(f"{folder} is for real cards, and this is a virtual one: take another --out")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.done: dict[str, Line] = {}
        if (folder / "card.json").exists():
            _mend(folder)
            before = read(folder)
            other = [name for name in _SAME if before.card[name] != card[name]]
            if other:
                told = ", ".join(f"{name} {before.card[name]} there, {card[name]} here" for name in other)
                raise RecordingError(f"{folder} is the recording of something else ({told}): take another --out")
            self.done = before.lines
        else:
            text = json.dumps({"format": FORMAT, **card}, indent=1) + "\n"
            (folder / "card.json").write_text(text, encoding="utf-8")

    def add(self, line: Line) -> int:
        """Write one line at once.

        Returns:
            Its bytes.
        """
        text = json.dumps(line, separators=(",", ":")) + "\n"
        files = _files(self._folder)
        last = files[-1] if files else self._folder / "recorded-0.jsonl"
        if files and last.stat().st_size + len(text) > FILE_BYTES and len(files) < FILES:
            last = self._folder / f"recorded-{len(files)}.jsonl"
        with last.open("a", encoding="utf-8") as file:
            file.write(text)
        self.done[line["name"]] = line
        return len(text)


def _mend(folder: Path) -> None:
    """Take off a line that was cut off in the middle."""
    for file in _files(folder):
        text = file.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            file.write_bytes(text[:whole])
