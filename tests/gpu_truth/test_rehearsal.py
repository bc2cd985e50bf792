"""The recorder on the virtual GPU: cut off in the middle, resumed, and replayed by what replays real recordings."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_truth import record as recorder
from tests.gpu_truth.compare import compared, confirmed_line, text_of
from tests.gpu_truth.history import Event, UnreplayableError, events_of, pack, unpack
from tests.gpu_truth.predict import Compared, histories, replayed
from tests.gpu_truth.recording import DATA, FORMAT, REHEARSAL, Recording, RecordingError, Writer, read
from tests.gpu_truth.search import largest_batch

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(600)
pytest.importorskip("transformers", reason="the rehearsal records a Llama: REHEARSAL NOT RUN")

# Without operations of cuDNN, whose plans the predictions know by rules: all of it must be equal.
ONLY = ("layer:linear", "layer:embedding", "small_llama b4 amp-bf16 adamw checkpoint", "context, kernels loaded lazy")
EQUAL = 7


def _start(folder: Path, *only: str) -> subprocess.Popen[str]:
    words = [word for text in only for word in ("--only", text)]
    program = ["-m", "tests.gpu_truth.record", "--out", str(folder), "--seconds", "250", *words]
    return subprocess.Popen(
        [sys.executable, "-m", "gpumem", "run", "--gpu", "h200", *program],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "python"), str(REPOSITORY)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def rehearsal(virtual_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recording, str, list[str]]:
    """A recording of two runs, what the second printed, and the lines that the first left."""
    folder = tmp_path_factory.mktemp("rehearsal") / "h200"
    first = _start(folder, *ONLY)
    assert first.stdout is not None
    until = time.monotonic() + 250
    for line in first.stdout:
        # Killed while the third thing is recorded.
        if " 2/" in line or time.monotonic() > until:
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    file = folder / "recorded-0.jsonl"
    before = file.read_text(encoding="utf-8").splitlines()
    with file.open("a", encoding="utf-8") as half:
        half.write('{"name":"cut off in the mid')
    second = _start(folder, *ONLY)
    said, _ = second.communicate(timeout=280)
    assert second.returncode == 0, said
    return read(folder), said, before


def test_what_was_recorded_before_the_interruption_is_kept(rehearsal: tuple[Recording, str, list[str]]) -> None:
    recording, said, before = rehearsal
    assert 2 <= len(before) < len(recording.lines)
    names = [json.loads(line)["name"] for line in before]
    assert list(recording.lines)[: len(names)] == names
    assert [recording.lines[name] for name in names] == [json.loads(line) for line in before]
    assert not any(f" {name}: " in said for name in names)


def test_a_rehearsal_says_that_it_is_one(rehearsal: tuple[Recording, str, list[str]]) -> None:
    recording, _, _ = rehearsal
    assert recording.is_virtual
    assert "rehearsal on the virtual GPU, no measurement" in text_of(recording, [])


def test_every_history_replays_exactly(rehearsal: tuple[Recording, str, list[str]]) -> None:
    recording, _, _ = rehearsal
    differences, _ = replayed(recording)
    assert len(differences) >= EQUAL
    assert {name: text for name, text in differences.items() if text} == {}


def test_predictions_are_equal_to_the_byte(rehearsal: tuple[Recording, str, list[str]]) -> None:
    recording, _, _ = rehearsal
    found = list(compared(recording))
    assert len(found) >= EQUAL
    for _, one in found:
        assert isinstance(one, Compared), one
        assert one.requests is not None
        assert one.requests.equal, f"{one.name}: {one.requests.text()}"
        assert one.equal, one.rows
        assert list(one.complaints()) == []
    assert confirmed_line(recording, found).startswith("h200\t")


def test_a_changed_recording_is_noticed(rehearsal: tuple[Recording, str, list[str]]) -> None:
    recording, _, _ = rehearsal
    for change in (_larger_request, _other_segment, _other_peak):
        lines = json.loads(json.dumps(recording.lines))
        change(next(run for _, run, _, _ in histories(Recording(recording.folder, recording.card, lines))))
        changed = Recording(recording.folder, recording.card, lines)
        complaints = [text for _, one in compared(changed) if isinstance(one, Compared) for text in one.complaints()]
        assert any(replayed(changed)[0].values()) or complaints, change.__name__


def _larger_request(run: dict[str, Any]) -> None:
    run["history"]["blocks"][0][2] += 1 << 21


def _other_segment(run: dict[str, Any]) -> None:
    run["history"]["segments"][0][1] += 1 << 21


def _other_peak(run: dict[str, Any]) -> None:
    run["measurement"]["steps"][1]["reserved_bytes"] += 1 << 30


def test_the_context_has_a_row_per_kind_of_kernel(rehearsal: tuple[Recording, str, list[str]]) -> None:
    recording, _, _ = rehearsal
    (line,) = recording.of("context")
    assert [row["after"] for row in line["steps"][:2]] == ["initialised", "first tensor"]
    assert all(row["outside_bytes"] > 0 and row["reserved_bytes"] == 0 for row in line["steps"])
    assert [row["after"] for row in line["steps"] if "error" in row] == []


def test_a_virtual_recording_is_refused_among_the_real_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"format": FORMAT, "virtual": True}
    with pytest.raises(RecordingError, match="for real cards"):
        Writer(DATA / "nvidia-h200-torch-2.14.1", card)
    monkeypatch.setattr("tests.gpu_truth.recording.DATA", tmp_path)
    for name in ("h200", f"{REHEARSAL}h200"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "card.json").write_text(json.dumps(card))
    with pytest.raises(RecordingError, match="virtual GPU"):
        read(tmp_path / "h200")
    assert read(tmp_path / f"{REHEARSAL}h200").is_virtual


def test_another_card_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    card = dict.fromkeys(("name", "total_bytes", "torch", "cuda", "cudnn", "driver"), "") | {"virtual": True}
    Writer(tmp_path, card).add({"name": "a", "kind": "loop"})
    assert list(Writer(tmp_path, card).done) == ["a"]
    with pytest.raises(RecordingError, match="torch  there, 2 here"):
        Writer(tmp_path, card | {"torch": "2"})


def test_there_is_no_recording_without_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(RecordingError, match="no CUDA device"):
        recorder.record(tmp_path / "none", 60)
    assert not (tmp_path / "none").exists()


def test_a_history_is_packed_without_loss() -> None:
    first, second = 1 << 40, 1 << 41
    events: list[Event] = [
        ("segment_alloc", first, 1 << 21, 0),
        ("alloc", first, 100, 0),
        ("alloc", first + 512, 1000, 0),
        ("free_completed", first, 0, 0),
        ("alloc", first, 100, 0),
        ("segment_alloc", second, 1 << 21, 7),
        ("alloc", second, 5, 7),
        ("free_completed", second, 0, 0),
        ("segment_free", second, 1 << 21, 0),
        ("oom", 0, 1 << 33, 7),
    ]
    last = [(first, first, 512, True), (first, first + 512, 1024, True), (first, first + 1536, (1 << 21) - 1536, False)]
    packed = json.loads(json.dumps(pack(events, last)))
    unpacked, layout = unpack(packed)
    # Streams of segments are those of their blocks.
    assert [event[:3] for event in unpacked if event[0] != "free_completed"] == [
        event[:3] for event in events if event[0] != "free_completed"
    ]
    assert [event[:2] for event in unpacked] == [event[:2] for event in events]
    assert layout == last


def test_what_cannot_be_replayed_is_said() -> None:
    entry = {"action": "free_requested", "addr": 1, "size": 2, "stream": 0}
    with pytest.raises(UnreplayableError, match="another stream"):
        events_of({"device_traces": [[entry, {**entry, "action": "alloc"}]], "segments": []}, 0)
    with pytest.raises(UnreplayableError, match="segment_map"):
        events_of({"device_traces": [[{**entry, "action": "segment_map"}]], "segments": []}, 0)


@pytest.mark.parametrize("largest", [0, 1, 2, 63, 64, 65, 1000])
@pytest.mark.parametrize("start", [1, 64])
def test_the_largest_batch_is_found(largest: int, start: int) -> None:
    found, tries = largest_batch(start, lambda batch: "ran" if batch <= largest else "out of memory")
    assert found == largest
    assert len(tries) <= 22
    assert tries[largest + 1] == "out of memory"


def test_a_run_that_says_nothing_ends_the_search() -> None:
    assert (
        largest_batch(8, lambda batch: "crashed: SIGSEGV" if batch == 12 else "ran" if batch < 12 else "out of memory")[
            0
        ]
        is None
    )
    assert largest_batch(8, lambda batch: "ran")[0] is None
