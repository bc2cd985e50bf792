"""`unfold` and `fold` of images, as `ATen/native/cuda/{Im2Col,Col2Im}.cu`; checked against the virtual GPU."""

from __future__ import annotations

from typing import Any

import torch

from gpumem.extraction.ops.registry import handles
from gpumem.extraction.recorder import Recorder, Temporaries

aten = torch.ops.aten


@handles(aten.im2col.default, aten.col2im.default)
def columns(rec: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output is made as large as the input and then resized: it gets a new storage, or keeps the large one."""
    x = args[0]
    output = func(*args, **kwargs)
    if not x.is_meta:
        return output
    with Temporaries(rec) as tmp:
        if output.numel() > x.numel():
            first = tmp.alloc(x.numel() * x.element_size())
            copy = tmp.contiguous(x)
            rec.requested(output)
            tmp.free(first, copy)
        else:
            whole = torch.empty(x.numel(), dtype=x.dtype, device="meta")
            rec.requested(whole)
            tmp.contiguous(x)
            output = whole[: output.numel()].view(output.shape)
    return output
