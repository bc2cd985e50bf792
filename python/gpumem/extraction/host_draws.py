"""Single random numbers drawn on the host, by which programs drop layers (layer drop, stochastic depth).

A step of such a program is another one each time, so no traced step is the next one, and a course drawn by chance can
need less memory than the next. Every such draw is therefore answered with the largest value there is, which drops no
layer, or with the smallest: `extract` takes the course that needs more memory, and the report says so.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from gpumem.extraction.recorder import ALLOC, FREE, Recorder

HIGHEST = 1 - 2.0**-24
"""The largest fp32 number below 1: uniform draws are in [0, 1)."""
LOWEST = 0.0


def host_draws(draw: Callable[[], float]) -> list[tuple[Any, str, Any]]:
    """Replacements for `patched`: Python's and numpy's functions that draw one uniform number.

    Args:
        draw: What a draw from [0, 1) is answered with.
    """

    def one() -> float:
        return draw()

    def between(low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * draw()

    replacements: list[tuple[Any, str, Any]] = [(random, "random", one), (random, "uniform", between)]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        replacements += [
            (numpy.random, name, _one_or_many(getattr(numpy.random, name), answer))
            for name, answer in (("random", one), ("uniform", between))
        ]
    return replacements


def _one_or_many(original: Callable[..., Any], one: Callable[..., float]) -> Callable[..., Any]:
    """`original` where an array is asked for."""

    def drawn(*args: Any, **kwargs: Any) -> Any:
        sized = "size" in kwargs or len(args) > 2 or (len(args) == 1 and original.__name__ == "random")
        return original(*args, **kwargs) if sized else one(*args, **kwargs)

    return drawn


def requested_peak_bytes(rec: Recorder) -> int:
    """Peak of the recorded requests, scratch left out."""
    live = peak = 0
    for event in rec.events:
        tag, index = event & 3, event >> 2
        if tag == ALLOC:
            live += rec.sizes[index]
            peak = max(peak, live)
        elif tag == FREE:
            live -= rec.sizes[index]
    return peak
