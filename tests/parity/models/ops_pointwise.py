"""Elementwise ops: activations, arithmetic, in-place forms, masks, dropout, copies and views."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

from tests.parity.models.op_net import Op, function, module

_ACTIVATIONS = """
relu relu6 leaky_relu elu selu celu gelu silu mish softplus softsign tanhshrink hardswish hardsigmoid hardtanh
logsigmoid softshrink hardshrink
"""
# Not here: erfc, exp2, lgamma, digamma, sinc are compiled at run time (jiterator), which the virtual GPU cannot.
_UNARY = """
abs neg exp expm1 log log1p log2 sqrt rsqrt reciprocal sin cos tan tanh sigmoid erf floor ceil round sign square
asinh atan cosh sinh trunc frac logit
"""


def _activation(name: str) -> Op:
    return function("tokens", lambda h, x: getattr(f, name)(h))


def _unary(name: str) -> Op:
    return function("tokens", lambda h, x: getattr(torch, name)(h))


OPS: dict[str, Op] = {name: _activation(name) for name in _ACTIVATIONS.split()}
OPS |= {f"unary_{name}": _unary(name) for name in _UNARY.split()}
OPS |= {
    "gelu_tanh": function("tokens", lambda h, x: f.gelu(h, approximate="tanh")),
    "glu": function("tokens", lambda h, x: f.glu(h, -1)),
    "glu_channels": function("images", lambda h, x: f.glu(h, 1)),
    "prelu": module("images", lambda: nn.PReLU()),
    "prelu_channels": module("images", lambda: nn.PReLU(8)),
    "rrelu": module("tokens", lambda: nn.RReLU()),
    "relu_inplace": module("tokens", lambda: nn.ReLU(inplace=True)),
    "silu_inplace": module("images", lambda: nn.SiLU(inplace=True)),
    "hardswish_inplace": module("images", lambda: nn.Hardswish(inplace=True)),
    "leaky_relu_inplace": module("images", lambda: nn.LeakyReLU(0.1, inplace=True)),
    "elu_inplace": module("images", lambda: nn.ELU(inplace=True)),
    "add_inplace": function("tokens", lambda h, x: h.add_(1).mul_(2)),
    "add": function("tokens", lambda h, x: h + x),
    "add_broadcast": function("tokens", lambda h, x: h + h[:, :1]),
    "add_scalar": function("tokens", lambda h, x: h + 1),
    "sub": function("tokens", lambda h, x: x - h),
    "rsub": function("tokens", lambda h, x: 1 - h),
    "mul": function("tokens", lambda h, x: h * h),
    "mul_broadcast": function("images", lambda h, x: h * h.mean((2, 3), keepdim=True)),
    "div": function("tokens", lambda h, x: h / (h + 2)),
    "div_scalar": function("tokens", lambda h, x: h / 3),
    "pow_scalar": function("tokens", lambda h, x: h**3),
    "pow_tensor": function("tokens", lambda h, x: x**h),
    "pow_both": function("tokens", lambda h, x: h.abs() ** h),
    "addcmul": function("tokens", lambda h, x: torch.addcmul(h, h, x)),
    "addcdiv": function("tokens", lambda h, x: torch.addcdiv(x, h, h + 1)),
    "lerp": function("tokens", lambda h, x: torch.lerp(h, x.to(h.dtype), 0.3)),
    "lerp_tensor": function("tokens", lambda h, x: torch.lerp(h, x.to(h.dtype), h)),
    "atan2": function("tokens", lambda h, x: torch.atan2(h, x)),
    "hypot": function("tokens", lambda h, x: torch.hypot(h, x)),
    "fmod": function("tokens", lambda h, x: torch.fmod(h, 2)),
    "remainder": function("tokens", lambda h, x: torch.remainder(h, 2)),
    "maximum": function("tokens", lambda h, x: torch.maximum(h, x)),
    "minimum": function("tokens", lambda h, x: torch.minimum(h, x)),
    "clamp": function("tokens", lambda h, x: h.clamp(0, 1)),
    "clamp_min": function("tokens", lambda h, x: h.clamp_min(0)),
    "clamp_tensor": function("tokens", lambda h, x: torch.clamp(h, x, x + 1)),
    "nan_to_num": function("tokens", lambda h, x: torch.nan_to_num(h)),
    "where_scalar": function("tokens", lambda h, x: torch.where(h > 0, h, 0.0)),
    "where_tensor": function("tokens", lambda h, x: torch.where(x > 0, h, x)),
    "masked_fill": function("tokens", lambda h, x: h.masked_fill(x > 1, 0.0)),
    "masked_fill_inplace": function("tokens", lambda h, x: h.masked_fill_(x > 1, 0.0)),
    "tril": function("tokens", lambda h, x: h.tril()),
    "triu": function("tokens", lambda h, x: h.triu(1)),
    "dropout": module("tokens", lambda: nn.Dropout(0.1)),
    "dropout_inplace": module("tokens", lambda: nn.Dropout(0.1, inplace=True)),
    "dropout2d": module("images", lambda: nn.Dropout2d(0.1)),
    "alpha_dropout": module("tokens", lambda: nn.AlphaDropout(0.1)),
    "bernoulli": function("tokens", lambda h, x: h * torch.empty_like(h).bernoulli_(0.5)),
    "rand_like": function("tokens", lambda h, x: h + torch.rand_like(h)),
    "randn_noise": function("tokens", lambda h, x: h + torch.randn(h.shape, device=h.device)),
    "to_double": function("tokens", lambda h, x: h.double().sin().float()),
    "to_half": function("tokens", lambda h, x: h.half().sin().float()),
    "clone": function("tokens", lambda h, x: h.clone()),
    "contiguous": function("tokens", lambda h, x: h.transpose(1, 2).contiguous()),
    "flip": function("tokens", lambda h, x: h.flip(1)),
    "roll": function("tokens", lambda h, x: h.roll(3, 1)),
    "roll_two": function("images", lambda h, x: h.roll((1, 2), (2, 3))),
    "roll_three": function("images", lambda h, x: h.roll((1, 2, 3), (1, 2, 3))),
    "rot90": function("images", lambda h, x: h.rot90(1, (2, 3))),
    "repeat": function("tokens", lambda h, x: h.repeat(1, 2, 1)),
    "repeat_interleave": function("tokens", lambda h, x: h.repeat_interleave(2, dim=1)),
    "expand": function("tokens", lambda h, x: h[:, :1].expand(-1, 64, -1) * h),
    "tile": function("rows", lambda h, x: torch.tile(h, (1, 3))),
    "cat": function("tokens", lambda h, x: torch.cat([h, x.to(h.dtype)], 1)),
    "cat_last": function("tokens", lambda h, x: torch.cat([h, h.sin()], -1)),
    "stack": function("tokens", lambda h, x: torch.stack([h, h]).sum(0)),
    "chunk": function("tokens", lambda h, x: torch.mul(*h.chunk(2, -1))),
    "split": function("tokens", lambda h, x: sum(h.split(32, -1), torch.zeros((), device=h.device))),
    "unbind": function("tokens", lambda h, x: torch.mul(*h.view(h.shape[0], 2, 32, 128).unbind(1))),
    "transpose_mul": function("images", lambda h, x: h.transpose(2, 3) * h),
    "permute_add": function("images", lambda h, x: h.permute(0, 2, 3, 1) + 1),
    "channels_last_mul": function("images", lambda h, x: h.contiguous(memory_format=torch.channels_last) * 2),
    "complex_rotary": function(
        "tokens",
        lambda h, x: torch.view_as_real(torch.view_as_complex(h.float().reshape(*h.shape[:-1], -1, 2)) * 1j).flatten(
            -2
        ),
    ),
    "rotate_half": function("tokens", lambda h, x: torch.cat((-h[..., 64:], h[..., :64]), -1) * h),
    "meshgrid": function(
        "images", lambda h, x: h + torch.meshgrid(*[torch.arange(16, device=h.device)] * 2, indexing="ij")[0]
    ),
    "linspace": function("tokens", lambda h, x: h * torch.linspace(0, 1, 128, device=h.device)),
    "new_zeros": function("tokens", lambda h, x: torch.cat([h, h.new_zeros(h.shape[0], 4, 128)], 1)),
    "ones_like_mask": function("tokens", lambda h, x: h.masked_fill(torch.ones_like(h, dtype=torch.bool), 0.0)),
    "one_hot": function("rows", lambda h, x: h * f.one_hot(h.argmax(-1), 128)),
    "logical": function("tokens", lambda h, x: h * ((x > 0) & (x < 1) | ~(x > 2)).to(h.dtype)),
    "bucketize": function("tokens", lambda h, x: h * torch.bucketize(x, torch.linspace(0, 1, 8, device=x.device))),
}
