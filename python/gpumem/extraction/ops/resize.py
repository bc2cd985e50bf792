"""Interpolation. Source: `ATen/native/cuda/UpSample*.cu`; checked against the virtual GPU."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.memory_format import is_contiguous, suggest_memory_format
from gpumem.extraction.ops.copies import outputs_then_copies
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Handler, Recorder, Temporaries

aten = torch.ops.aten
# Fewest channels for which the channels_last kernels are used.
_NEAREST_CHANNELS_MIN = 4
_BILINEAR_CHANNELS_MIN = 16
_BILINEAR_BACKWARD_CHANNELS_MIN = 4


def _two_layouts(channels_min: int, *, copies_when_contiguous: bool) -> Handler:
    """A 2-d kernel with a channels_last path; elsewhere it works on contiguous stand-ins for result and argument."""

    def handler(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[0]
        output = func(*args, **kwargs)
        if not source.is_meta:
            return output
        rec.requested(output)
        if source.shape == output.shape:
            return output
        memory_format = suggest_memory_format(source)
        with Temporaries(rec) as tmp:
            if (
                memory_format == torch.channels_last
                and source.shape[1] >= channels_min
                and is_contiguous(output, memory_format)
            ):
                tmp.contiguous(source, memory_format)
            elif copies_when_contiguous:
                tmp.contiguous(output)
                tmp.contiguous(source)
        return output

    return handler


handles(aten.upsample_nearest2d.default, aten._upsample_nearest_exact2d.default)(
    _two_layouts(_NEAREST_CHANNELS_MIN, copies_when_contiguous=True)
)
handles(aten.upsample_nearest2d_backward.default, aten._upsample_nearest_exact2d_backward.default)(
    _two_layouts(_NEAREST_CHANNELS_MIN, copies_when_contiguous=True)
)
handles(aten.upsample_bilinear2d.default)(_two_layouts(_BILINEAR_CHANNELS_MIN, copies_when_contiguous=False))
handles(aten.upsample_bilinear2d_backward.default)(
    _two_layouts(_BILINEAR_BACKWARD_CHANNELS_MIN, copies_when_contiguous=True)
)


def _contiguous_only(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A kernel that reads and writes contiguous memory: stand-ins for an output and an argument that are not."""
    output = func(*args, **kwargs)
    if args[0].is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            tmp.contiguous(output)
            tmp.contiguous(args[0])
    return output


handles(
    aten.upsample_nearest3d.default,
    aten.upsample_nearest3d_backward.default,
    aten._upsample_nearest_exact3d.default,
    aten._upsample_nearest_exact3d_backward.default,
    aten._upsample_bilinear2d_aa.default,
    aten._upsample_bilinear2d_aa_backward.default,
    aten._upsample_bicubic2d_aa.default,
    aten._upsample_bicubic2d_aa_backward.default,
)(_contiguous_only)
handles(
    aten.upsample_nearest1d.default,
    aten.upsample_nearest1d_backward.default,
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact1d_backward.default,
    aten.upsample_linear1d_backward.default,
    aten.upsample_bicubic2d_backward.default,
    aten.upsample_trilinear3d_backward.default,
)(outputs_then_copies(0))
