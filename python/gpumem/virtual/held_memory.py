"""Which lines of the program hold the memory that is handed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpumem.virtual.run_report import HeldMemory

_MOST_SITES = 20
_BACKWARD = "no Python code: autograd's own thread (gradients)"


def record_call_sites(torch: Any) -> None:
    """Let PyTorch keep the Python frames of whatever is allocated; it costs a step some 20 % of its time."""
    torch.cuda.memory._record_memory_history("state", context="state", stacks="python")


def held_memory(torch: Any, is_program: Callable[[str], bool]) -> tuple[HeldMemory, ...]:
    """Blocks in use on all devices by the innermost frame of the program, the most bytes first.

    Args:
        torch: The imported PyTorch.
        is_program: Whether a file is the program's and not a library's.
    """
    sites: dict[str, list[int]] = {}
    for segment in torch.cuda.memory._snapshot()["segments"]:
        for block in segment["blocks"]:
            if block["state"] != "active_allocated":
                continue
            frames = block.get("frames", ())
            site = next(
                (
                    f"{frame['filename']}:{frame['line']} {frame['name']}"
                    for frame in frames
                    if is_program(frame["filename"])
                ),
                _BACKWARD,
            )
            counted = sites.setdefault(site, [0, 0])
            counted[0] += block["size"]
            counted[1] += 1
    held = [HeldMemory(site=site, held_bytes=size, blocks=blocks) for site, (size, blocks) in sites.items()]
    return tuple(sorted(held, key=lambda it: (-it.held_bytes, it.site))[:_MOST_SITES])
