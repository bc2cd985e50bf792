"""Trains a GPT in the shape of nanoGPT: bf16, fused AdamW, accumulation, pinned batches from a file, evaluation.

Alone, or one process of several that torchrun started (DistributedDataParallel); with --compile, by torch.compile.
Prints the peaks of each process as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from gpt import Gpt, Size, loss_of


def batch_of(file: str, size: Size, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    data = np.memmap(file, dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - size.length, (batch,))
    x, y = (
        torch.stack([torch.from_numpy(data[i + shift : i + shift + size.length].astype(np.int64)) for i in starts])
        for shift in (0, 1)
    )
    return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)


def rate(step: int, steps: int) -> float:
    if step < 2:
        return 6e-4 * (step + 1) / 3
    return 6e-5 + 0.5 * (1 + math.cos(math.pi * step / steps)) * 5.4e-4


def main(args: argparse.Namespace, file: str) -> None:
    together = "RANK" in os.environ
    if together:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(1337 + rank)
    size = Size(layers=args.layers)
    model: Any = Gpt(size)
    model.to("cuda")
    optimizer = optimizer_of(model)
    if args.compile:
        model = torch.compile(model)
    if together:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])
    bf16 = torch.amp.autocast("cuda", dtype=torch.bfloat16)
    best = 1e9
    if args.prefetch:
        ahead = batch_of(file, size, args.batch_size)
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, args.steps)
        if args.evaluate and step % 2 == 0:
            model.eval()
            losses = torch.zeros(2)
            with torch.no_grad():
                for k in range(2):
                    ex, ey = batch_of(file, size, args.batch_size)
                    with bf16:
                        losses[k] = loss_of(model(ex), ey).item()
                del ex, ey
            model.train()
            best = min(best, losses.mean().item())
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            quiet = model.no_sync() if together and not last else contextlib.nullcontext()
            x, y = ahead if args.prefetch else batch_of(file, size, args.batch_size)
            with quiet:
                with bf16:
                    logits = model(x)
                    loss = loss_of(logits, y) / args.accumulate
                if args.prefetch:
                    ahead = batch_of(file, size, args.batch_size)
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: loss {loss.item() * args.accumulate:.4f}", flush=True)
    stats = torch.cuda.memory_stats()
    peaks = {name: stats[f"{name}_bytes.all.peak"] for name in ("requested", "allocated", "reserved")}
    print(json.dumps({"rank": rank, **peaks}), flush=True)
    if together:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    for flag in ("--prefetch", "--evaluate", "--compile"):
        parser.add_argument(flag, action="store_true")
    with tempfile.TemporaryDirectory() as folder:
        tokens = np.random.default_rng(0).integers(0, Size().words, 20_000, dtype=np.uint16)
        tokens.tofile(f"{folder}/train.bin")
        main(parser.parse_args(), f"{folder}/train.bin")
