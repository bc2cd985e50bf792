"""Indexing, gather and scatter, sort and top-k, embeddings."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as f

from tests.parity.models.op_net import Op, function, module


def _ids(h: torch.Tensor, count: int) -> torch.Tensor:
    """Indices on the device, `[count]`."""
    return torch.zeros(count, dtype=torch.long, device=h.device)


def _like(h: torch.Tensor) -> torch.Tensor:
    """Indices on the device in the shape of `h`."""
    return torch.zeros(h.shape, dtype=torch.long, device=h.device)


def _assigned(h: torch.Tensor, value: object) -> torch.Tensor:
    out = h.clone()
    out[:, 2:5] = value  # type: ignore[assignment]
    return out


def _put(h: torch.Tensor, accumulate: bool) -> torch.Tensor:
    rows = _ids(h, 40)
    values = h[0, :40] * 1
    return torch.zeros_like(h).index_put((rows, rows), values, accumulate=accumulate)


class _Embedded(nn.Module):
    """An embedding looked up with indices that do not depend on the hidden tensor, multiplied into it."""

    def __init__(self, table: nn.Module, count: int) -> None:
        super().__init__()
        self.table = table
        self.count = count

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        ids = torch.zeros(h.shape[0], self.count, dtype=torch.long, device=h.device)
        return torch.cat([h, self.table(ids).reshape(h.shape[0], -1, 128)], 1)


def _masked_rows(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Rows under a mask made on the host are replaced, read, and looked for."""
    on_host = torch.zeros(h.shape[:2], dtype=torch.bool)
    on_host[:, : COUNTED["mask_from_host"]] = True
    mask = on_host.to(h.device)
    h = h.clone()
    h[mask] = x[0, 0].to(h.dtype)
    rows = h[mask]
    found = h[mask.nonzero(as_tuple=True)].mean() + h[:, :, 0].masked_select(mask).mean()
    scattered = h[:, :, 1].masked_scatter(mask, h[:, :10, 2])
    return h + rows.sum(0) + found + scattered.unsqueeze(2)


COUNTED = {"mask_from_host": 5}
"""Set elements per sample that the host asks the device for, which computes nothing and has to be told them."""


class _Columns(nn.Module):
    """Columns of a table of boxes, and an expanded row, looked up in one embedding each."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(50, 128)
        self.rows = nn.Embedding(50, 128)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        boxes = torch.zeros(h.shape[0], 6, 4, dtype=torch.long, device=h.device)
        row = torch.zeros(1, 6, dtype=torch.long, device=h.device).expand(h.shape[0], 6)
        return torch.cat([h, self.places(boxes[:, :, 1]) + self.places(boxes[:, :, 3]) + self.rows(row)], 1)


OPS: dict[str, Op] = {
    "slice": function("tokens", lambda h, x: h[:, 3:40:2]),
    "narrow": function("tokens", lambda h, x: h.narrow(1, 3, 20)),
    "select": function("tokens", lambda h, x: h[:, 5]),
    "slice_assign": function("tokens", lambda h, x: _assigned(h, h[:, 10:13])),
    "slice_assign_number": function("tokens", lambda h, x: _assigned(h, 0.5)),
    "slice_assign_input": function("tokens", lambda h, x: _assigned(h, x[:, 10:13])),
    "select_scatter": function("tokens", lambda h, x: torch.select_scatter(h, h[:, 0], 1, 3)),
    "slice_scatter": function("tokens", lambda h, x: torch.slice_scatter(h, h[:, :4], 1, 4, 8)),
    "diagonal": function("images", lambda h, x: h.diagonal(dim1=2, dim2=3)),
    "diag_embed": function("lines", lambda h, x: torch.diag_embed(h)),
    "index_one": function("tokens", lambda h, x: h[:, _ids(h, 40)]),
    "index_first": function("tokens", lambda h, x: h[_ids(h, 6)].sum(0, keepdim=True) + h),
    "index_two": function("tokens", lambda h, x: h[torch.arange(h.shape[0], device=h.device), _ids(h, h.shape[0])]),
    "index_two_broadcast": function("tokens", lambda h, x: h[:, _ids(h, 8)[:, None], _ids(h, 9)[None]]),
    "index_host": function("tokens", lambda h, x: h[:, [0, 3, 5]]),
    "index_large": function("tokens", lambda h, x: h[:, _ids(h, 4096)].mean(1)),
    "index_select": function("tokens", lambda h, x: h.index_select(1, _ids(h, 20))),
    "index_add": function("tokens", lambda h, x: torch.zeros_like(h).index_add(1, _ids(h, 64), h)),
    "index_copy": function("tokens", lambda h, x: torch.zeros_like(h).index_copy(1, _ids(h, 64), h)),
    "index_fill": function("tokens", lambda h, x: h.index_fill(1, _ids(h, 4), 0.0)),
    "index_put": function("tokens", lambda h, x: _put(h, accumulate=False)),
    "index_put_accumulate": function("tokens", lambda h, x: _put(h, accumulate=True)),
    "gather": function("tokens", lambda h, x: h.gather(1, _like(h))),
    "take_along_dim": function("tokens", lambda h, x: torch.take_along_dim(h, _like(h)[:, :5], 1)),
    "take": function("tokens", lambda h, x: torch.take(h, _like(h))),
    "scatter": function("tokens", lambda h, x: torch.zeros_like(h).scatter(1, _like(h), h)),
    "scatter_value": function("tokens", lambda h, x: h.scatter(1, _like(h)[:, :2], 0.0)),
    "scatter_add": function("tokens", lambda h, x: torch.zeros_like(h).scatter_add(1, _like(h), h)),
    "scatter_reduce_amax": function(
        "tokens", lambda h, x: torch.zeros_like(h).scatter_reduce(1, _like(h), h, "amax", include_self=True)
    ),
    "scatter_reduce_mean": function(
        "tokens", lambda h, x: torch.zeros_like(h).scatter_reduce(1, _like(h), h, "mean", include_self=False)
    ),
    "index_mask": function("tokens", lambda h, x: h + h[x > 1].sum()),
    "masked_select": function("tokens", lambda h, x: h + torch.masked_select(h, x[:, :, :1] > 1).sum()),
    "masked_scatter": function("tokens", lambda h, x: h.masked_scatter(x > 1, h)),
    "sort": function("tokens", lambda h, x: h.sort(-1)[0]),
    "sort_middle": function("tokens", lambda h, x: h.sort(1)[0]),
    "sort_descending_stable": function("tokens", lambda h, x: torch.sort(h, dim=-1, descending=True, stable=True)[0]),
    "sort_long": function("tokens", lambda h, x: h.flatten(1).sort(-1)[0]),
    "argsort": function("tokens", lambda h, x: h.gather(1, x.argsort(1))),
    "topk": function("tokens", lambda h, x: h.topk(3, -1)[0]),
    "topk_middle": function("tokens", lambda h, x: h.topk(5, 1)[0]),
    "topk_long": function("tokens", lambda h, x: h.flatten(1).topk(100, -1)[0]),
    "kthvalue": function("tokens", lambda h, x: h.kthvalue(3, -1)[0]),
    "searchsorted": function("rows", lambda h, x: h * torch.searchsorted(x, x.detach())),
    "embedding": module("tokens", lambda: _Embedded(nn.Embedding(50, 128), 5)),
    "embedding_padding": module("tokens", lambda: _Embedded(nn.Embedding(50, 128, padding_idx=0), 5)),
    "embedding_large": module("tokens", lambda: _Embedded(nn.Embedding(5000, 128), 1700)),
    "mask_from_host": function("tokens", _masked_rows),
    "embedding_columns": module("tokens", _Columns),
    "embedding_max_norm": module("tokens", lambda: _Embedded(nn.Embedding(50, 128, max_norm=1.0), 5)),
    "embedding_scale_by_freq": module("tokens", lambda: _Embedded(nn.Embedding(50, 128, scale_grad_by_freq=True), 5)),
    "embedding_bag_sum": module("tokens", lambda: _Embedded(nn.EmbeddingBag(50, 128, mode="sum"), 5)),
    "embedding_bag_mean": module("tokens", lambda: _Embedded(nn.EmbeddingBag(50, 128, mode="mean"), 5)),
    "embedding_bag_max": module("tokens", lambda: _Embedded(nn.EmbeddingBag(50, 128, mode="max"), 5)),
    "one_hot_matmul": function("tokens", lambda h, x: f.one_hot(_like(h)[..., 0], 64).to(h.dtype) @ h),
}
