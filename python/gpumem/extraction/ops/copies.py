"""Handlers for kernels whose only difference from meta is a contiguous copy of an argument after the output."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.memory_format import suggest_memory_format
from gpumem.extraction.recorder import Handler, Recorder, Temporaries


def outputs_then_copies(*arguments: int, layout_of: int | None = None) -> Handler:
    """A handler that runs the meta kernel and then copies arguments to one layout, freed at the end of the call.

    Args:
        arguments: Positions of the arguments that the CUDA kernel makes contiguous, in its order.
        layout_of: Position of the argument whose suggested memory format is used; by default plain contiguous.
    """

    def handler(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        first = args[arguments[0]]
        if first.is_meta:
            rec.requested(output)
            memory_format = torch.contiguous_format if layout_of is None else suggest_memory_format(args[layout_of])
            with Temporaries(rec) as tmp:
                for position in arguments:
                    tmp.contiguous(args[position], memory_format)
        return output

    return handler
