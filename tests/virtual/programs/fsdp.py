"""Trains a GPT with FSDP2 (fully_shard) in bf16 on all devices. Run by torchrun, or with --spawn on its own.

Prints the peaks of each process as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.multiprocessing.spawn import spawn

sys.path.insert(0, str(Path(__file__).parent))
from gpt import Gpt, Size, loss_of


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (world,))
    size = Size(layers=args.layers)
    with torch.device("meta"):
        model = Gpt(size)
    policy: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy() if args.offload else OffloadPolicy(),
    }
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    model.to_empty(device="cpu" if args.offload else "cuda")
    if args.checkpoint:
        model.checkpoint_kind = "non-reentrant"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(args.steps):
        x = torch.randint(size.words, (args.batch_size, size.length), device="cuda")
        loss = loss_of(model(x), x)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
    print(f"gradient norm {float(norm.full_tensor()) if hasattr(norm, 'full_tensor') else float(norm)}")
    stats = torch.cuda.memory_stats()
    peaks = {name: stats[f"{name}_bytes.all.peak"] for name in ("requested", "allocated", "reserved")}
    print(json.dumps({"rank": rank, **peaks}), flush=True)
    dist.destroy_process_group()


def started(rank: int, world: int, store: str, args: argparse.Namespace) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{store}", rank=rank, world_size=world)
    train(args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--spawn", action="store_true")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.spawn:
        with tempfile.TemporaryDirectory() as folder:
            world = torch.cuda.device_count()
            spawn(started, args=(world, f"{folder}/store", arguments), nprocs=world)
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl")
        train(arguments)
