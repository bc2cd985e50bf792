"""Matrix products in their forms, bilinear, distances, the basics of linalg, and Fourier transforms.

Left out: determinants, Cholesky and QR factors, singular values and eigenvalues, whose requests are not all known to
estimates, and matrix_exp, which reads values. The virtual GPU takes the workspaces of cuSOLVER and cuFFT as zero.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.parity.models.op_net import Op, function, module


def _square(h: torch.Tensor) -> torch.Tensor:
    """A batch of well-shaped 16 x 16 matrices in fp32."""
    return h.float() + torch.eye(16, device=h.device)


OPS: dict[str, Op] = {
    "linear": module("tokens", lambda: nn.Linear(128, 32)),
    "linear_no_bias": module("tokens", lambda: nn.Linear(128, 32, bias=False)),
    "linear_rows": module("rows", lambda: nn.Linear(128, 32)),
    "linear_permuted": module("images", lambda: _Permuted(nn.Linear(8, 12))),
    "linear_transposed": module("tokens", lambda: _Transposed(nn.Linear(64, 12))),
    "bilinear": module("tokens", lambda: _Twice(nn.Bilinear(128, 128, 16))),
    "matmul_batched": function("tokens", lambda h, x: h @ h.transpose(1, 2)),
    "matmul_broadcast": function("images", lambda h, x: h @ h[:, :1].transpose(2, 3)),
    "matmul_vector": function("tokens", lambda h, x: h @ h[0, 0]),
    "bmm": function("tokens", lambda h, x: torch.bmm(h, x.to(h.dtype).transpose(1, 2))),
    "baddbmm": function("tokens", lambda h, x: torch.baddbmm(h[:, :, :64], h, h.transpose(1, 2))),
    "addmm": function("rows", lambda h, x: torch.addmm(h, h, h.t() @ h)),
    "addmv": function("rows", lambda h, x: torch.addmv(h[:, 0], h, h[0])),
    "outer": function("rows", lambda h, x: torch.outer(h[:, 0], h[0])),
    "dot": function("rows", lambda h, x: torch.dot(h[0], h[1])),
    "einsum_bij_jk": function("tokens", lambda h, x: torch.einsum("bij,kj->bik", h, h[0])),
    "einsum_bij_bkj": function("tokens", lambda h, x: torch.einsum("bij,bkj->bik", h, h)),
    "einsum_heads": function(
        "tokens", lambda h, x: torch.einsum("bnhd,bmhd->bhnm", *[h.view(h.shape[0], 64, 4, 32)] * 2)
    ),
    "einsum_diagonal": function("images", lambda h, x: torch.einsum("bcii->bci", h)),
    "einsum_sum": function("images", lambda h, x: torch.einsum("bchw->bc", h)),
    "tensordot": function("tokens", lambda h, x: torch.tensordot(h, h[0], dims=([2], [1]))),
    "chain_matmul": function("rows", lambda h, x: torch.linalg.multi_dot([h, h.t(), h])),
    "kron": function("rows", lambda h, x: torch.kron(h, h[:1, :4])),
    "cdist_mm": function("tokens", lambda h, x: torch.cdist(h, x)),
    "cdist_direct": function("tokens", lambda h, x: torch.cdist(h, x, compute_mode="donot_use_mm_for_euclid_dist")),
    "cdist_l1": function("tokens", lambda h, x: torch.cdist(h.float(), x.float(), p=1.0)),
    "cross": function("tokens", lambda h, x: torch.cross(h[..., :3], x[..., :3], dim=-1)),
    "trace": function("rows", lambda h, x: (h.t() @ h).trace()),
    "matrix_norm": function("images", lambda h, x: torch.linalg.matrix_norm(h)),
    # Without its gradient, whose triangular solves are not followed.
    "cholesky": function("images", lambda h, x: h + torch.linalg.cholesky_ex(_square(h.detach()))[0].sum()),
    "inv": function("images", lambda h, x: torch.linalg.inv(_square(h))),
    "solve": function("images", lambda h, x: torch.linalg.solve(_square(h), x.float())),
    "rfft2": function("images", lambda h, x: torch.fft.rfft2(h.float()).real),
    "irfft2": function("images", lambda h, x: torch.fft.irfft2(torch.fft.rfft2(h.float()))),
    "fourier_filter": function("images", lambda h, x: torch.fft.ifft2(torch.fft.fft2(h.float()) * x.float()).real),
    "angle": function("tokens", lambda h, x: torch.fft.rfft(h.float()).angle()),
    "rfft": function("tokens", lambda h, x: torch.fft.rfft(h.float()).real),
    "fft2_abs": function("images", lambda h, x: torch.fft.fft2(h.float()).abs()),
    "irfft": function("tokens", lambda h, x: torch.fft.irfft(torch.fft.rfft(h.float()))),
    "matrix_power": function("images", lambda h, x: torch.linalg.matrix_power(h.float(), 3)),
    "triangular_solve": function(
        "images", lambda h, x: torch.linalg.solve_triangular(_square(h).triu(), x.float(), upper=True)
    ),
}


class _Permuted(nn.Module):
    """Applies the layer to the channels of an image through a permuted view."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.permute(0, 2, 3, 1))


class _Transposed(_Permuted):
    """Applies the layer across tokens through a transposed view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.transpose(1, 2))


class _Twice(_Permuted):
    """Gives the layer the same tensor as both of its arguments."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x)
