"""Histories of PyTorch's allocator as small JSON: every event, with blocks and segments named once.

`pack` and `unpack` are each other's inverse. A packed history is

    segments  [address, bytes] of each segment that the driver gave, in order
    blocks    [segment, offset, bytes asked for] of each distinct request; a fourth number is a stream other than 0
    events    integers: 4 n + 0 request of block n, + 1 its free, + 2 segment n is given, + 3 entry n of `others`
    others    ["segment_free", segment] and ["oom", bytes, stream]
    last      per segment that is left: [segment, bytes of block, ...], negative where the block is not handed out
"""

from __future__ import annotations

from typing import Any

Event = tuple[str, int, int, int]
Layout = list[tuple[int, int, int, bool]]

_REQUEST, _FREE, _SEGMENT, _OTHER = range(4)


class UnreplayableError(ValueError):
    """The history has something in it that is not packed: expandable segments, frees that wait for another stream."""


def events_of(snapshot: dict[str, Any], device: int) -> tuple[list[Event], Layout]:
    """Events and final layout of `torch.cuda.memory._snapshot()`.

    Raises:
        UnreplayableError: see there.
    """
    events: list[Event] = []
    waiting = None
    for entry in snapshot["device_traces"][device]:
        action, address = entry["action"], entry.get("addr", 0)
        if waiting is not None and (action, address) != ("free_completed", waiting):
            raise UnreplayableError("a free waits for another stream")
        waiting = address if action == "free_requested" else None
        if action in ("alloc", "free_completed", "segment_alloc", "segment_free", "oom"):
            events.append((action, address, entry["size"], entry["stream"]))
        elif action not in ("free_requested", "snapshot"):
            raise UnreplayableError(f"an event {action!r}")
    layout = [
        (segment["address"], block["address"], block["size"], block["state"] == "active_allocated")
        for segment in snapshot["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
    ]
    return events, sorted(layout)


def pack(events: list[Event], last: Layout) -> dict[str, Any]:
    """Make a history small."""
    segments: list[list[int]] = []
    live: dict[int, int] = {}
    numbers: dict[tuple[int, ...], int] = {}
    handed_out: dict[int, int] = {}
    others: list[list[Any]] = []
    codes = []

    def place(address: int) -> tuple[int, int]:
        for start, number in live.items():
            if start <= address < start + segments[number][1]:
                return number, address - start
        raise UnreplayableError(f"{address:#x} lies in no segment")

    for action, address, size, stream in events:
        if action == "alloc":
            block = (*place(address), size, *([stream] if stream else []))
            handed_out[address] = numbers.setdefault(block, len(numbers))
            codes.append(4 * handed_out[address] + _REQUEST)
        elif action == "free_completed":
            if address not in handed_out:
                raise UnreplayableError(f"{address:#x} was handed out before the history begins")
            codes.append(4 * handed_out.pop(address) + _FREE)
        elif action == "segment_alloc":
            live[address] = len(segments)
            codes.append(4 * len(segments) + _SEGMENT)
            segments.append([address, size])
        else:
            others.append(["segment_free", live.pop(address)] if action == "segment_free" else ["oom", size, stream])
            codes.append(4 * (len(others) - 1) + _OTHER)
    left: dict[int, list[int]] = {}
    for segment, _, size, used in last:
        left.setdefault(live[segment], []).append(size if used else -size)
    return {
        "segments": segments,
        "blocks": [list(block) for block in numbers],
        "events": codes,
        "others": others,
        "last": [[number, *blocks] for number, blocks in left.items()],
    }


def unpack(packed: dict[str, Any]) -> tuple[list[Event], Layout]:
    """Inverse of `pack`."""
    segments, blocks = packed["segments"], packed["blocks"]
    events: list[Event] = []
    for code in packed["events"]:
        number, kind = divmod(code, 4)
        if kind in (_REQUEST, _FREE):
            segment, offset, size, *stream = blocks[number]
            action = "alloc" if kind == _REQUEST else "free_completed"
            events.append((action, segments[segment][0] + offset, size, stream[0] if stream else 0))
        elif kind == _SEGMENT:
            events.append(("segment_alloc", *segments[number], 0))
        else:
            action, first, *rest = packed["others"][number]
            events.append((action, *segments[first], 0) if action == "segment_free" else (action, 0, first, *rest))
    layout: Layout = []
    for number, *sizes in packed["last"]:
        start = at = segments[number][0]
        for size in sizes:
            layout.append((start, at, abs(size), size > 0))
            at += abs(size)
    return events, sorted(layout)


def requests(packed: dict[str, Any]) -> list[int]:
    """Bytes of every request, in order."""
    return [packed["blocks"][code // 4][2] for code in packed["events"] if code % 4 == _REQUEST]
