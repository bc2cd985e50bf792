"""Fourier transforms, kernels compiled at run time, linear algebra: by name, functions without arguments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch
from op_cases import CASES, CUDA, case, rand

# Fourier transforms --------------------------------------------------------------------------------------------------


@case
def fft_odd_sizes_and_norms() -> None:
    for n in (1, 2, 3, 7, 17, 97, 1009, 1 << 16):
        for norm in ("forward", "backward", "ortho"):
            x = rand(2, n, grad=True)
            torch.fft.irfft(torch.fft.rfft(x, norm=norm), n=n, norm=norm).sum().backward()
            torch.fft.ifft(torch.fft.fft(x.detach(), norm=norm), norm=norm)
            torch.fft.ihfft(x.detach(), norm=norm)


@case
def fft_many_dimensions() -> None:
    x = rand(2, 3, 8, 12, 10, grad=True)
    torch.fft.irfftn(torch.fft.rfftn(x, dim=(1, 2, 3, 4)), s=x.shape[1:], dim=(1, 2, 3, 4)).sum().backward()
    torch.fft.fftn(x.detach(), dim=(0, 1, 2, 3, 4)).abs().sum()
    torch.fft.fft2(x.detach().transpose(1, 4)).angle()


@case
def fft_half() -> None:
    x = rand(4, 64, dtype=torch.float16)
    torch.fft.irfft(torch.fft.rfft(x))
    torch.fft.fft(x).abs()


@case
def fft_half_of_an_odd_size() -> None:
    torch.fft.rfft(rand(4, 60, dtype=torch.float16))


@case
def fft_plans_pushed_out() -> None:
    torch.backends.cuda.cufft_plan_cache.max_size = 4
    for n in range(2, 40):
        torch.fft.fft(rand(n))
    torch.backends.cuda.cufft_plan_cache.clear()


@case
def stft_and_back() -> None:
    window = torch.hann_window(64, device=CUDA)
    x = rand(2, 1024, grad=True)
    spectrum = torch.stft(x, 64, hop_length=16, window=window, return_complex=True)
    spectrum.abs().pow(2).sum().backward()


@case
def complex_network() -> None:
    x = rand(4, 8, dtype=torch.complex64, grad=True)
    y = (x @ rand(8, 8, dtype=torch.complex64)).tanh() * x.exp() + x.log() + x.sqrt() + x.pow(2.5) + x.sgn()
    (y.abs() + y.angle() + y.real + y.imag).sum().backward()


@case
def complex_half() -> None:
    x = torch.complex(rand(8, dtype=torch.float16), rand(8, dtype=torch.float16))
    (x * x).abs(), x.angle(), x.exp(), x.sum()


# Kernels compiled at run time ----------------------------------------------------------------------------------------


@case
def jiterator() -> None:
    twice = torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T twice(T x, T y, T a) { return x + y * a; }", a=1
    )
    twice(rand(5), rand(5), a=3)
    twice(rand(5, 1, dtype=torch.float64), rand(1, 5, dtype=torch.float64))
    two = torch.cuda.jiterator._create_multi_output_jit_fn(
        "template <typename T> void two(T x, T& y, T& z) { y = x; z = -x; }", num_outputs=2
    )
    two(rand(5))


@case
def jiterator_that_does_not_compile() -> None:
    wrong = torch.cuda.jiterator._create_jit_fn("template <typename T> T wrong(T x) { return x + missing; }")
    wrong(rand(5))


def _special(function: Callable[..., object]) -> None:
    x = rand(16)
    for arguments in ((x,), (x, x), (torch.tensor(2, device=CUDA), x)):
        with contextlib.suppress(TypeError):
            function(*arguments)


for _name in dir(torch.special):
    if callable(getattr(torch.special, _name)) and not _name.startswith("_"):
        CASES[f"more:special.{_name}"] = functools.partial(_special, getattr(torch.special, _name))


@case
def integer_jits() -> None:
    a, b = torch.randint(1, 9, (8,), device=CUDA), torch.randint(1, 9, (8,), device=CUDA)
    torch.gcd(a, b), torch.lcm(a, b)


@case
def triton_kernel() -> None:
    import triton_kernel as kernel

    kernel.add(rand(1000), rand(1000))


@case
def compiled_kernel() -> None:
    code = 'extern "C" __global__ void add_one(float* x, int n) { int i = threadIdx.x; if (i < n) x[i] += 1; }'
    kernel = torch.cuda._compile_kernel(code, "add_one")
    x = rand(32)
    kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[x, 32])


# Linear algebra ------------------------------------------------------------------------------------------------------


def _linear_algebra(a: torch.Tensor) -> None:
    linalg = torch.linalg
    eye = torch.eye(a.shape[-1], device=CUDA, dtype=a.dtype).expand_as(a)
    for backend in ("cusolver", "magma", "default"):
        torch.backends.cuda.preferred_linalg_library(backend)
        linalg.cholesky_ex(eye), linalg.qr(a), linalg.qr(a, mode="complete"), linalg.svd(a), linalg.svdvals(a)
        linalg.eigh(a), linalg.eigvalsh(a), linalg.inv_ex(a), linalg.solve_ex(a, eye), linalg.lu(a)
        linalg.lu_factor_ex(a), linalg.det(a), linalg.slogdet(a), linalg.pinv(a)
        linalg.lstsq(a, eye), linalg.matrix_rank(a), linalg.cond(a), linalg.norm(a)
        linalg.solve_triangular(a.triu(), eye, upper=True), torch.cholesky_solve(eye, eye), torch.cholesky_inverse(eye)
        linalg.householder_product(*torch.geqrf(a))
        torch.ormqr(*torch.geqrf(a), eye)
        torch.lu_solve(eye, *linalg.lu_factor_ex(a)[:2])
    for driver in ("gesvd", "gesvdj", "gesvda"):
        linalg.svd(a, driver=driver)


@case
def eigenvalues_of_any_matrix() -> None:
    for shape in ((8, 8), (3, 8, 8), (600, 600)):
        torch.linalg.eig(rand(*shape)), torch.linalg.eigvals(rand(*shape, dtype=torch.complex64))


@case
def indefinite_factors() -> None:
    for shape in ((8, 8), (3, 8, 8)):
        torch.linalg.ldl_solve(*torch.linalg.ldl_factor(rand(*shape)), rand(*shape))


@case
def exponential_of_a_matrix() -> None:
    for shape in ((8, 8), (3, 8, 8)):
        torch.linalg.matrix_exp(rand(*shape))


@case
def linear_algebra_single() -> None:
    for dtype in (torch.float32, torch.float64, torch.complex64):
        _linear_algebra(rand(8, 8, dtype=dtype))


@case
def linear_algebra_batched() -> None:
    for shape in ((4, 8, 8), (2, 3, 40, 40), (600, 4, 4), (0, 3, 3)):
        _linear_algebra(rand(*shape))


@case
def linear_algebra_large() -> None:
    _linear_algebra(rand(1100, 1100))


@case
def linear_algebra_backward() -> None:
    a = rand(3, 8, 8, grad=True)
    for output in (
        torch.linalg.cholesky_ex(a @ a.mT)[0],
        *torch.linalg.qr(a),
        torch.linalg.svdvals(a),
        torch.linalg.eigvalsh(a),
        torch.linalg.inv_ex(a)[0],
        torch.linalg.solve_ex(a, a)[0],
        torch.linalg.slogdet(a)[1],
    ):
        output.sum().backward(retain_graph=True)
