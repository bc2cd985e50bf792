"""Reductions, softmax, cumulative ops, norms of vectors, normalisation layers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

from tests.parity.models.op_net import Op, function, module

OPS: dict[str, Op] = {
    "sum_last": function("tokens", lambda h, x: h.sum(-1)),
    "sum_middle": function("tokens", lambda h, x: h.sum(1)),
    "sum_all": function("tokens", lambda h, x: h.sum()),
    "sum_bool": function("tokens", lambda h, x: h * (x > 0).sum(-1, keepdim=True)),
    "sum_int": function("tokens", lambda h, x: h * (x > 0).int().sum(-1, keepdim=True)),
    "mean_spatial": function("images", lambda h, x: h.mean((2, 3))),
    "mean_all": function("tokens", lambda h, x: h.mean()),
    "mean_float": function("tokens", lambda h, x: h.mean(-1, keepdim=True, dtype=torch.float32) * h),
    "var": function("tokens", lambda h, x: h.var(-1)),
    "std_middle": function("tokens", lambda h, x: h.std(1)),
    "var_mean": function("tokens", lambda h, x: torch.add(*torch.var_mean(h, -1))),
    "amax": function("tokens", lambda h, x: h.amax(1)),
    "amin": function("tokens", lambda h, x: h.amin(-1)),
    "max_dim": function("tokens", lambda h, x: h.max(-1)[0]),
    "min_dim": function("tokens", lambda h, x: h.min(1)[0]),
    "max_all": function("tokens", lambda h, x: h.max()),
    "median": function("tokens", lambda h, x: h.median(-1)[0]),
    "aminmax": function("tokens", lambda h, x: torch.add(*torch.aminmax(h, dim=-1))),
    "argmax": function("tokens", lambda h, x: h * h.argmax(-1, keepdim=True)),
    "any_all": function("tokens", lambda h, x: h * (x > 0).any(-1, keepdim=True) * (x > 0).all(-1, keepdim=True)),
    "logsumexp": function("tokens", lambda h, x: h.logsumexp(-1)),
    "logsumexp_middle": function("tokens", lambda h, x: h.logsumexp(1)),
    "norm_l2": function("tokens", lambda h, x: h.norm(dim=-1)),
    "norm_l1": function("tokens", lambda h, x: h.norm(p=1, dim=-1)),
    "norm_all": function("tokens", lambda h, x: h.norm()),
    "vector_norm": function("tokens", lambda h, x: torch.linalg.vector_norm(h, dim=(1, 2))),
    "normalize": function("tokens", lambda h, x: f.normalize(h, dim=-1)),
    "cosine_similarity": function("tokens", lambda h, x: f.cosine_similarity(h, x, dim=-1)),
    "pairwise_distance": function("tokens", lambda h, x: f.pairwise_distance(h, x)),
    "softmax": function("tokens", lambda h, x: h.softmax(-1)),
    "softmax_middle": function("tokens", lambda h, x: h.softmax(1)),
    "softmax_channels": function("images", lambda h, x: h.softmax(1)),
    "softmax_permuted": function("tokens", lambda h, x: h.transpose(1, 2).softmax(-1)),
    "softmax_float": function("tokens", lambda h, x: h.softmax(-1, dtype=torch.float32)),
    "softmin": function("tokens", lambda h, x: f.softmin(h, -1)),
    "log_softmax": function("tokens", lambda h, x: f.log_softmax(h, -1)),
    "log_softmax_middle": function("tokens", lambda h, x: f.log_softmax(h, 1)),
    "gumbel_softmax": function("tokens", lambda h, x: f.gumbel_softmax(h, dim=-1)),
    "cumsum": function("tokens", lambda h, x: h.cumsum(1)),
    "cumsum_last": function("tokens", lambda h, x: h.cumsum(-1)),
    "cumsum_int": function("tokens", lambda h, x: h * (x > 0).int().cumsum(1)),
    "cumprod": function("tokens", lambda h, x: (h + 1).cumprod(1)),
    "cummax": function("tokens", lambda h, x: h.cummax(1)[0]),
    "logcumsumexp": function("tokens", lambda h, x: h.logcumsumexp(1)),
    "diff": function("tokens", lambda h, x: h.diff(dim=1)),
    "layer_norm": module("tokens", lambda: nn.LayerNorm(128)),
    "layer_norm_plain": module("tokens", lambda: nn.LayerNorm(128, elementwise_affine=False)),
    "layer_norm_no_bias": module("tokens", lambda: nn.LayerNorm(128, bias=False)),
    "layer_norm_permuted": function("images", lambda h, x: f.layer_norm(h.permute(0, 2, 3, 1), (8,))),
    "rms_norm": module("tokens", lambda: nn.RMSNorm(128)),
    "rms_norm_plain": function("tokens", lambda h, x: f.rms_norm(h, (128,))),
    "group_norm": module("images", lambda: nn.GroupNorm(4, 8)),
    "group_norm_lines": module("lines", lambda: nn.GroupNorm(2, 8)),
    "group_norm_rows": module("rows", lambda: nn.GroupNorm(4, 128)),
    "batch_norm_1d_rows": module("rows", lambda: nn.BatchNorm1d(128)),
    "batch_norm_1d": module("lines", lambda: nn.BatchNorm1d(8)),
    "batch_norm_2d": module("images", lambda: nn.BatchNorm2d(8)),
    "batch_norm_2d_plain": module("images", lambda: nn.BatchNorm2d(8, affine=False)),
    "batch_norm_2d_no_stats": module("images", lambda: nn.BatchNorm2d(8, track_running_stats=False)),
    "batch_norm_2d_channels_last": module(
        "images", lambda: nn.Sequential(_ChannelsLast(), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    ),
    "batch_norm_2d_eval": module("images", lambda: _Eval(nn.BatchNorm2d(8))),
    "batch_norm_2d_1x1": module("images", lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8))),
    "batch_norm_3d": module("volumes", lambda: nn.BatchNorm3d(4)),
    "instance_norm_1d": module("lines", lambda: nn.InstanceNorm1d(8)),
    "instance_norm_2d": module("images", lambda: nn.InstanceNorm2d(8, affine=True)),
    "instance_norm_2d_stats": module("images", lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True)),
    "instance_norm_3d": module("volumes", lambda: nn.InstanceNorm3d(4)),
    "local_response_norm": module("images", lambda: nn.LocalResponseNorm(2)),
    "weight_norm": module("tokens", lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(128, 32))),
    "weight_norm_old": module("tokens", lambda: torch.nn.utils.weight_norm(nn.Linear(128, 32))),
    "spectral_norm": module("tokens", lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(128, 32))),
}


class _ChannelsLast(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last)


class _Eval(nn.Module):
    """A layer kept in evaluation mode inside a net that trains, as frozen batch norms are."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def train(self, mode: bool = True) -> _Eval:
        super().train(mode)
        self.inner.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)
