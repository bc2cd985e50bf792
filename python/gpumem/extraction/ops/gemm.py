"""Matrix products: the output, then cuBLAS's persistent workspace at the first call of each thread.

An operand that cuBLAS cannot read (an expanded gradient, a permuted view) is cloned between the two
(`ATen/native/cuda/Blas.cpp`: `prepare_matrix_for_cublas`, `prepare_batch_matrix_for_cublas`).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gpumem.extraction.installed import linear_returns_a_view
from gpumem.extraction.memory_format import is_dense
from gpumem.extraction.ops.engine import under_mode
from gpumem.extraction.ops.product_workspaces import cublas_call, cublas_lt_call
from gpumem.extraction.ops.registry import chooses, handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


def _fits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether the product exists; PyTorch's own kernel raises where it does not."""
    return (
        left.is_meta
        and right.is_meta
        and left.dim() == right.dim()
        and left.shape[-1] == right.shape[-2]
        and left.shape[:-2] == right.shape[:-2]
        and left.dtype == right.dtype
    )


def _is_read_in_place(matrix: torch.Tensor, row_limit: int, column_limit: int) -> bool:
    """Whether rows or columns are contiguous and the leading dimension spans the other.

    Args:
        matrix: The operand, possibly batched.
        row_limit: Least stride of rows whose elements are adjacent.
        column_limit: Least stride of columns whose elements are adjacent.
    """
    rows, columns = matrix.stride()[-2:]
    if (columns == 1 and rows >= row_limit) or (rows == 1 and columns >= column_limit):
        return True
    if matrix.dim() == 2:
        return is_dense(matrix)
    return matrix.is_contiguous() and rows != 0 and columns != 0


def _clones(left: torch.Tensor, right: torch.Tensor) -> list[torch.Tensor]:
    """Operands that are cloned, in CUDA's order: the result is row-major, so cuBLAS gets the right one first.

    A batched result of one column counts as column-major: then the left one comes first.
    """
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if not rows or not columns or not inner:
        return []
    found = []
    if not _is_read_in_place(right, columns, inner):
        found.append(right)
    if not _is_read_in_place(left, inner, rows):
        found.append(left)
    return found if left.dim() == 2 or columns > 1 else found[::-1]


def _is_lt(bias: torch.Tensor, right: torch.Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether cuBLASLt adds the bias in its epilogue (`addmm_out_cuda_impl`, CUDA 12.1 and later)."""
    return (
        kwargs.get("beta", 1) == 1
        and bias.dim() == 1
        and bias.shape[0] == right.shape[1]
        and bias.is_contiguous()
        and bias.is_floating_point()
        and min(right.shape) > 1
    )


_WITH_EPILOGUE = (aten.addmm.default, aten._addmm_activation.default)


@handles(aten.mm.default, aten.bmm.default, aten.baddbmm.default, *_WITH_EPILOGUE)
def matrix_product(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The product of the last two operands; an addend is read by the epilogue or copied into the output."""
    left, right = args[-2:]
    if not _fits(left, right):
        return func(*args, **kwargs)
    # PyTorch's own meta kernels of the sums are decompositions in Python.
    output = torch.empty((*left.shape[:-1], right.shape[-1]), dtype=left.dtype, device="meta")
    rec.requested(output)
    with Temporaries(rec) as tmp:
        for operand in _clones(left, right):
            tmp.alloc(operand.numel() * operand.element_size())
        if func in _WITH_EPILOGUE and _is_lt(args[0], right, kwargs):
            cublas_lt_call(rec, tmp)
        else:
            cublas_call(rec)
    rec.count_flops(2 * output.numel() * left.shape[-1])
    return output


@handles(aten.mv.default, aten.addmv.default, aten.dot.default, aten.vdot.default)
def vector_product(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The product of a matrix or a vector with a vector."""
    output = func(*args, **kwargs)
    if output.is_meta:
        rec.requested(output)
        cublas_call(rec)
        rec.count_flops(2 * args[-2].numel())
    return output


@handles(aten.bmm.out)
def product_into(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same into an output that is there."""
    left, right = args
    if not _fits(left, right):
        return func(*args, **kwargs)
    with Temporaries(rec) as tmp:
        for operand in _clones(left, right):
            tmp.alloc(operand.numel() * operand.element_size())
        cublas_call(rec)
    rec.count_flops(2 * kwargs["out"].numel() * left.shape[-1])
    return kwargs["out"]


@chooses("linear")
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`aten::linear` as CUDA runs it: meta adds the bias out of place, CUDA only under a mode of the program."""
    if bias is not None:
        if x.dim() == 2:
            return aten.addmm.default(bias, x, weight.t())  # type: ignore[no-any-return]
        if x.is_contiguous() and bias.dim() == 1 and x.dim() >= 2:
            rows = math.prod(x.shape[:-1])
            flat = aten.addmm.default(bias, x.reshape(rows, x.shape[-1]), weight.t())
            shape = [*x.shape[:-1], weight.shape[0]]
            view: torch.Tensor = flat.view(shape) if linear_returns_a_view() else aten._unsafe_view.default(flat, shape)
            return view
    output = aten.matmul.default(x, weight.t())
    if bias is None:
        return output  # type: ignore[no-any-return]
    return output.add(bias) if under_mode() else output.add_(bias)  # type: ignore[no-any-return]
