"""Activation checkpointing of a real module: which modules can be regions, applying a choice of them, undoing it.

The user's `plan.apply(model)` and the tracer, on its meta copy, both go through `apply_regions`, so that what is
estimated and what is run are the same by construction. A region is named by a dotted module path (`encoder.layers.3`),
or, inside an `nn.Sequential`, by a run of its members (`features[0:5]`: members 0 to 4), as
`torch.utils.checkpoint.checkpoint_sequential` makes them.

Options and the snippet (`code`) need no torch; the other names load it when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpumem.checkpointing.options import OPTIONS
from gpumem.checkpointing.snippet import code
from gpumem.lazy import on_first_use

if TYPE_CHECKING:
    from gpumem.checkpointing.apply import Applied, applied_regions, apply_regions, undo_regions
    from gpumem.checkpointing.candidates import Candidates, Region, candidate_regions
    from gpumem.checkpointing.segments import called_one_by_one, candidate_segments
    from gpumem.checkpointing.structure import check_fingerprint, fingerprint, first_difference

__all__ = [
    "OPTIONS",
    "Applied",
    "Candidates",
    "Region",
    "applied_regions",
    "apply_regions",
    "called_one_by_one",
    "candidate_regions",
    "candidate_segments",
    "check_fingerprint",
    "code",
    "fingerprint",
    "first_difference",
    "undo_regions",
]

__getattr__ = on_first_use(
    __name__,
    {
        "Applied": "apply",
        "Candidates": "candidates",
        "Region": "candidates",
        "applied_regions": "apply",
        "apply_regions": "apply",
        "called_one_by_one": "segments",
        "candidate_regions": "candidates",
        "candidate_segments": "segments",
        "check_fingerprint": "structure",
        "fingerprint": "structure",
        "first_difference": "structure",
        "undo_regions": "apply",
    },
)
