"""Linear systems in batches of small matrices, which cuBLAS and cuSOLVER take as arrays of pointers.

Sources: `BatchLinearAlgebra.cpp`, `BatchLinearAlgebraLib.cpp`.

What cuSOLVER asks for (single or large matrices) is not known here and left out.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.ops.product_workspaces import cublas_call
from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten
_POINTER_BYTES = 8
_PIVOT_BYTES = 4
# Rows up to which the kernels that take pointers are chosen.
_FACTORED_ROWS = 511
_SOLVED_SQUARE_ROWS = 16
_SOLVED_NARROW = ((8, 1 << 62), (64, 8), (128, 2))
_FEW_MATRICES = 8
_LARGE_TRIANGLE_ROWS = 64


def _batch(matrices: torch.Tensor) -> int:
    return math.prod(matrices.shape[:-2])


def _factor(rec: Recorder, tmp: Temporaries, matrices: torch.Tensor) -> None:
    rows, columns = matrices.shape[-2:]
    if rows == columns <= _FACTORED_ROWS and _batch(matrices) > 1:
        pointers = tmp.alloc(_batch(matrices) * _POINTER_BYTES)
        cublas_call(rec)
        tmp.free(pointers)


def _solve(rec: Recorder, tmp: Temporaries, matrices: torch.Tensor, right_sides: int) -> None:
    """Two arrays of pointers where the solution is not made of two triangular solves."""
    rows, batch = matrices.shape[-1], _batch(matrices)
    if rows == right_sides:
        batched = rows <= _SOLVED_SQUARE_ROWS
    else:
        most = next((columns for limit, columns in _SOLVED_NARROW if rows <= limit), 0)
        # For one or two matrices of more than 8 rows there is a cuSOLVER loop.
        batched = right_sides <= most and (batch > 2 or rows <= _SOLVED_NARROW[0][0])
    if batched:
        pointers = [tmp.alloc(batch * _POINTER_BYTES) for _ in range(2)]
        cublas_call(rec)
        tmp.free(*pointers)
    else:
        cublas_call(rec)
        cublas_call(rec)


@handles(aten.linalg_lu_factor_ex.default)
def lu_factor(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Factors, pivots and flags."""
    output = func(*args, **kwargs)
    if args[0].is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            _factor(rec, tmp, args[0])
    return output


@handles(aten.linalg_cholesky_ex.default)
def cholesky(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Factors and flags; the matrices of a batch are pointed to."""
    output = func(*args, **kwargs)
    if args[0].is_meta:
        rec.requested(output)
        if _batch(args[0]) > 1:
            with Temporaries(rec) as tmp:
                tmp.alloc(_batch(args[0]) * _POINTER_BYTES)
    return output


@handles(aten.linalg_lu_solve.default)
def lu_solve(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The solution."""
    output = func(*args, **kwargs)
    if output.is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            _solve(rec, tmp, args[0], args[2].shape[-1])
    return output


@handles(aten._linalg_solve_ex.default)
def solve(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The solution, factors, pivots and flags."""
    output = func(*args, **kwargs)
    matrices = args[0]
    if matrices.is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            _factor(rec, tmp, matrices)
            _solve(rec, tmp, matrices, output[0].shape[-1] if output[0].dim() == matrices.dim() else 1)
    return output


@handles(aten.linalg_inv_ex.default)
def inverse(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The solution for the unit matrix, and flags; factors and pivots are temporary."""
    output = func(*args, **kwargs)
    matrices = args[0]
    if matrices.is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            tmp.alloc(matrices.numel() * matrices.element_size())
            tmp.alloc(_batch(matrices) * matrices.shape[-1] * _PIVOT_BYTES)
            _factor(rec, tmp, matrices)
            _solve(rec, tmp, matrices, matrices.shape[-1])
    return output


@handles(aten.linalg_solve_triangular.default)
def solve_triangular(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The solution; a few large matrices are solved one by one."""
    output = func(*args, **kwargs)
    matrices = args[0]
    if output.is_meta:
        rec.requested(output)
        with Temporaries(rec) as tmp:
            if _batch(matrices) > _FEW_MATRICES or matrices.shape[-1] < _LARGE_TRIANGLE_ROWS:
                tmp.alloc(_batch(matrices) * _POINTER_BYTES)
                tmp.alloc(_batch(matrices) * _POINTER_BYTES)
            cublas_call(rec)
    return output


@handles(aten._linalg_check_errors.default)
def check_errors(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Whether any flag is set, as the host asks."""
    if not args[0].is_meta:
        return func(*args, **kwargs)
    with Temporaries(rec) as tmp:
        tmp.alloc(1)
    return None
