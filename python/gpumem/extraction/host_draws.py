"""Single random numbers drawn on the host, by which programs drop layers (layer drop, stochastic depth).

A step of such a program is another one each time, so no traced step is the next one, and a course drawn by chance can
need less memory than the next. Every such draw is therefore answered with the largest value there is, which drops no
layer, or with the smallest: `extract` takes the course that needs more memory, and the report says so. Places drawn
without replacement (masked spans) lie at equal distances, for the same reason.
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


def host_draws(draw: Callable[[], float], note: Callable[[str], None]) -> list[tuple[Any, str, Any]]:
    """Replacements for `patched`: Python's and numpy's functions that draw one uniform number.

    Args:
        draw: What a draw from [0, 1) is answered with.
        note: Takes a sentence for the report.
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
        replacements += [
            (numpy.random, "rand", _rand_one(numpy.random.rand, draw)),
            (numpy.random, "choice", _spread(numpy.random.choice, note)),
        ]
    return replacements


def _one_or_many(original: Callable[..., Any], one: Callable[..., float]) -> Callable[..., Any]:
    """`original` where an array is asked for."""

    def drawn(*args: Any, **kwargs: Any) -> Any:
        sized = "size" in kwargs or len(args) > 2 or (len(args) == 1 and original.__name__ == "random")
        return original(*args, **kwargs) if sized else one(*args, **kwargs)

    return drawn


def _rand_one(original: Callable[..., Any], draw: Callable[[], float]) -> Callable[..., Any]:
    """`original` where more than one number is asked for."""

    def drawn(*shape: Any) -> Any:
        drawn_array = original(*shape)
        if not shape:
            return draw()
        if drawn_array.size == 1:
            drawn_array[...] = draw()
        return drawn_array

    return drawn


def _spread(original: Callable[..., Any], note: Callable[[str], None]) -> Callable[..., Any]:
    """Draws without replacement lie at equal distances: spans that begin there cover as much as they can.

    SpecAugment masks spans; the elements under the mask are counted, and the fewer spans overlap, the more there are.
    """

    def drawn(a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        values = original(a, size, replace, p)
        if replace or p is not None or not isinstance(size, int) or size < 1:
            return values
        note("places drawn on the host without replacement (masked spans) were taken at equal distances")
        numpy = sys.modules["numpy"]
        population = numpy.arange(a) if numpy.ndim(a) == 0 else numpy.asarray(a)
        return population[numpy.arange(size) * len(population) // size]

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
