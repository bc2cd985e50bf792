"""Convolutions, pooling, interpolation, padding, sampling, folding."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

from tests.parity.models.op_net import Op, function, module

OPS: dict[str, Op] = {
    "conv1d": module("lines", lambda: nn.Conv1d(8, 12, 3, padding=1)),
    "conv1d_stride": module("lines", lambda: nn.Conv1d(8, 12, 5, stride=2)),
    "conv1d_permuted": function(
        "tokens", lambda h, x: f.conv1d(h.transpose(1, 2), torch.ones(16, 128, 1, device=h.device))
    ),
    "conv1d_depthwise": module("lines", lambda: nn.Conv1d(8, 8, 3, padding=2, groups=8)),
    "conv1d_circular": module("lines", lambda: nn.Conv1d(8, 8, 3, padding=1, padding_mode="circular")),
    "conv2d": module("images", lambda: nn.Conv2d(8, 12, 3, padding=1)),
    "conv2d_no_bias": module("images", lambda: nn.Conv2d(8, 12, 3, bias=False)),
    "conv2d_1x1": module("images", lambda: nn.Conv2d(8, 12, 1)),
    "conv2d_stride": module("images", lambda: nn.Conv2d(8, 12, 3, stride=2)),
    "conv2d_dilated": module("images", lambda: nn.Conv2d(8, 12, 3, dilation=2)),
    "conv2d_grouped": module("images", lambda: nn.Conv2d(8, 12, 3, groups=2)),
    "conv2d_depthwise": module("images", lambda: nn.Conv2d(8, 8, 3, groups=8)),
    "conv2d_depthwise_multiplier": module("images", lambda: nn.Conv2d(8, 16, 3, groups=8)),
    "conv2d_depthwise_stride": module("images", lambda: nn.Conv2d(8, 8, 5, stride=2, groups=8)),
    "conv2d_depthwise_channels_last": module("images", lambda: _ChannelsLast(nn.Conv2d(8, 8, 3, groups=8))),
    "conv2d_same": module("images", lambda: nn.Conv2d(8, 12, 4, padding="same")),
    "conv2d_reflect": module("images", lambda: nn.Conv2d(8, 12, 3, padding=1, padding_mode="reflect")),
    "conv2d_channels_last": module("images", lambda: _ChannelsLast(nn.Conv2d(8, 12, 3, padding=1))),
    "conv2d_frozen_input": function(
        "images", lambda h, x: f.conv2d(x, torch.ones(8, 8, 3, 3, device=h.device), padding=1) * h
    ),
    "conv2d_1x1_map": module("images", lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 12, 1))),
    "conv3d": module("volumes", lambda: nn.Conv3d(4, 6, 3, padding=1)),
    "conv3d_depthwise": module("volumes", lambda: nn.Conv3d(4, 4, 3, groups=4)),
    "conv_transpose1d": module("lines", lambda: nn.ConvTranspose1d(8, 12, 4, stride=2)),
    "conv_transpose2d": module("images", lambda: nn.ConvTranspose2d(8, 12, 2, stride=2)),
    "conv_transpose2d_grouped": module("images", lambda: nn.ConvTranspose2d(8, 12, 3, groups=2, output_padding=0)),
    "conv_transpose2d_channels_last": module("images", lambda: _ChannelsLast(nn.ConvTranspose2d(8, 12, 2, stride=2))),
    "conv_transpose3d": module("volumes", lambda: nn.ConvTranspose3d(4, 6, 2, stride=2)),
    "max_pool1d": function("lines", lambda h, x: f.max_pool1d(h, 2)),
    "max_pool2d": function("images", lambda h, x: f.max_pool2d(h, 3, 2, 1)),
    "max_pool2d_channels_last": module("images", lambda: _ChannelsLast(nn.MaxPool2d(3, 2, 1))),
    "max_pool2d_ceil": function("images", lambda h, x: f.max_pool2d(h, 3, 2, ceil_mode=True)),
    "max_pool3d": function("volumes", lambda h, x: f.max_pool3d(h, 2)),
    "max_unpool2d": function("images", lambda h, x: f.max_unpool2d(*f.max_pool2d(h, 2, return_indices=True), (2, 2))),
    "avg_pool1d": function("lines", lambda h, x: f.avg_pool1d(h, 2)),
    "avg_pool2d": function("images", lambda h, x: f.avg_pool2d(h, 2)),
    "avg_pool2d_channels_last": module("images", lambda: _ChannelsLast(nn.AvgPool2d(2))),
    "avg_pool3d": function("volumes", lambda h, x: f.avg_pool3d(h, 2)),
    "lp_pool2d": function("images", lambda h, x: f.lp_pool2d(h, 2.0, 2)),
    "fractional_max_pool2d": function("images", lambda h, x: f.fractional_max_pool2d(h, 2, output_size=(7, 7))),
    "adaptive_avg_pool1d": function("lines", lambda h, x: f.adaptive_avg_pool1d(h, 4)),
    "adaptive_avg_pool2d": function("images", lambda h, x: f.adaptive_avg_pool2d(h, 5)),
    "adaptive_avg_pool2d_1": function("images", lambda h, x: f.adaptive_avg_pool2d(h, 1)),
    "adaptive_avg_pool2d_channels_last": module("images", lambda: _ChannelsLast(nn.AdaptiveAvgPool2d(3))),
    "adaptive_avg_pool3d": function("volumes", lambda h, x: f.adaptive_avg_pool3d(h, 2)),
    "adaptive_avg_pool3d_1": function("volumes", lambda h, x: f.adaptive_avg_pool3d(h, 1)),
    "adaptive_max_pool1d": function("lines", lambda h, x: f.adaptive_max_pool1d(h, 4)),
    "adaptive_max_pool2d": function("images", lambda h, x: f.adaptive_max_pool2d(h, 5)),
    "adaptive_max_pool3d": function("volumes", lambda h, x: f.adaptive_max_pool3d(h, 2)),
    "interpolate_nearest": function("images", lambda h, x: f.interpolate(h, scale_factor=2)),
    "interpolate_nearest_exact": function("images", lambda h, x: f.interpolate(h, size=(24, 24), mode="nearest-exact")),
    "interpolate_bilinear": function("images", lambda h, x: f.interpolate(h, scale_factor=2, mode="bilinear")),
    "interpolate_bilinear_corners": function(
        "images", lambda h, x: f.interpolate(h, size=(20, 30), mode="bilinear", align_corners=True)
    ),
    "interpolate_bilinear_antialias": function(
        "images", lambda h, x: f.interpolate(h, size=(8, 8), mode="bilinear", antialias=True)
    ),
    "interpolate_bilinear_channels_last": function(
        "images",
        lambda h, x: f.interpolate(h.contiguous(memory_format=torch.channels_last), scale_factor=2, mode="bilinear"),
    ),
    "interpolate_bicubic": function("images", lambda h, x: f.interpolate(h, size=(20, 20), mode="bicubic")),
    "interpolate_bicubic_antialias": function(
        "images", lambda h, x: f.interpolate(h, size=(8, 8), mode="bicubic", antialias=True)
    ),
    "interpolate_area": function("images", lambda h, x: f.interpolate(h, size=(8, 8), mode="area")),
    "interpolate_linear": function("lines", lambda h, x: f.interpolate(h, scale_factor=2, mode="linear")),
    "interpolate_nearest_1d": function("lines", lambda h, x: f.interpolate(h, scale_factor=2)),
    "interpolate_nearest_3d": function("volumes", lambda h, x: f.interpolate(h, scale_factor=2)),
    "interpolate_trilinear": function("volumes", lambda h, x: f.interpolate(h, scale_factor=2, mode="trilinear")),
    "pad_constant": function("images", lambda h, x: f.pad(h, (1, 2, 0, 1))),
    "pad_negative": function("images", lambda h, x: f.pad(h, (-1, -1))),
    "pad_value": function("images", lambda h, x: f.pad(h, (1, 1), value=1.0)),
    "pad_reflect_1d": function("lines", lambda h, x: f.pad(h, (2, 1), mode="reflect")),
    "pad_reflect_2d": function("images", lambda h, x: f.pad(h, (1, 1, 2, 2), mode="reflect")),
    "pad_reflect_3d": function("volumes", lambda h, x: f.pad(h, (1, 1, 1, 1, 1, 1), mode="reflect")),
    "pad_replicate_1d": function("lines", lambda h, x: f.pad(h, (2, 1), mode="replicate")),
    "pad_replicate_2d": function("images", lambda h, x: f.pad(h, (1, 1, 2, 2), mode="replicate")),
    "pad_replicate_3d": function("volumes", lambda h, x: f.pad(h, (1, 1, 1, 1, 1, 1), mode="replicate")),
    "pad_circular_1d": function("lines", lambda h, x: f.pad(h, (2, 1), mode="circular")),
    "pad_circular_2d": function("images", lambda h, x: f.pad(h, (1, 1, 2, 2), mode="circular")),
    "grid_sample_bilinear": function(
        "images", lambda h, x: f.grid_sample(h, h.view(-1, 32, 32, 2).tanh(), align_corners=False)
    ),
    "grid_sample_nearest": function(
        "images", lambda h, x: f.grid_sample(h, x.view(-1, 32, 32, 2), mode="nearest", align_corners=True)
    ),
    "grid_sample_bicubic": function(
        "images", lambda h, x: f.grid_sample(h, x.view(-1, 32, 32, 2), mode="bicubic", align_corners=True)
    ),
    "grid_sample_3d": function(
        "volumes",
        lambda h, x: f.grid_sample(h, x.flatten(1)[:, :384].reshape(-1, 2, 8, 8, 3), align_corners=False),
    ),
    "affine_grid": function(
        "images", lambda h, x: f.affine_grid(h[:, 0, :2, :3], [h.shape[0], 8, 16, 16], align_corners=False)
    ),
    "unfold": function("images", lambda h, x: f.unfold(h, 3, padding=1)),
    "fold": function("images", lambda h, x: f.fold(f.unfold(h, 2, stride=2), (16, 16), 2, stride=2)),
    "tensor_unfold": function("images", lambda h, x: h.unfold(2, 4, 2).unfold(3, 4, 2)),
    "pixel_shuffle": function("images", lambda h, x: f.pixel_shuffle(h, 2)),
    "pixel_unshuffle": function("images", lambda h, x: f.pixel_unshuffle(h, 2)),
    "channel_shuffle": function("images", lambda h, x: f.channel_shuffle(h, 4)),
    "flatten_start": function("images", lambda h, x: h.flatten(2).transpose(1, 2)),
}


class _ChannelsLast(nn.Module):
    """Gives the layer a channels-last tensor and keeps its own weights in that layout."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.contiguous(memory_format=torch.channels_last))
