"""A GPT's training step without and with each kind of activation checkpointing; prints each one's peak as JSON."""

from __future__ import annotations

import functools
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

sys.path.insert(0, str(Path(__file__).parent))
from gpt import Block, Gpt, Size, loss_of

SIZE = Size(length=256, dropout=0.0)
KEPT = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}


def keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


class Selective(nn.Module):
    """A block that keeps its matrix products and computes the rest again."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> Any:
        contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
        return checkpoint(self.block, x, use_reentrant=False, context_fn=contexts)


class Segments(nn.Module):
    """Several blocks in two segments."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)


def kind(name: str) -> Callable[[Gpt], None]:
    def set_kind(model: Gpt) -> None:
        model.checkpoint_kind = name

    return set_kind


def selective(model: Gpt) -> None:
    model.blocks = nn.ModuleList(Selective(block) for block in model.blocks)


def sequential(model: Gpt) -> None:
    model.blocks = nn.ModuleList([Segments(list(model.blocks))])


def wrapped(model: Gpt) -> None:
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))


def peak(change: Callable[[Gpt], None]) -> int:
    model = Gpt(SIZE)
    change(model)
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        x = torch.randint(SIZE.words, (8, SIZE.length), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    result: int = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    del model, optimizer, loss, x
    gc.collect()
    return result


peaks = {
    "plain": peak(lambda model: None),
    "reentrant": peak(kind("reentrant")),
    "non-reentrant": peak(kind("non-reentrant")),
    "wrapped": peak(wrapped),
    "selective": peak(selective),
    "sequential": peak(sequential),
}
print(json.dumps(peaks))
