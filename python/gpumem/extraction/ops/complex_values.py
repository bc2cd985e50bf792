"""Complex values: what CUDA needs to make real ones of them, and Fourier transforms back to them.

Sources: `unary_op_impl_with_complex_to_float_out` in UnaryOps.cpp, `_fft_c2r_cufft` in cuda/SpectralOps.cpp. What cuFFT
asks for its plans is not known and left out.
"""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


def _as_complex(tmp: Temporaries, values: torch.Tensor) -> None:
    """The result as complex values."""
    if values.is_complex():
        tmp.alloc(values.numel() * values.element_size())


@handles(aten.abs.default)
def absolute(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result, and the same as complex values."""
    output = func(*args, **kwargs)
    if output.is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            _as_complex(tmp, args[0])
    return output


@handles(aten.angle.default)
def angle(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result, after the same as complex values."""
    output = func(*args, **kwargs)
    if output.is_meta:
        with Temporaries(rec) as tmp:
            _as_complex(tmp, args[0])
            rec.requested(output)
    return output


@handles(aten._fft_c2r.default)
def fft_to_real(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result, and a copy of the input, which cuFFT writes to."""
    output = func(*args, **kwargs)
    values = args[0]
    if output.is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            tmp.alloc(values.numel() * values.element_size())
    return output
