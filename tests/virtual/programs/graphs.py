"""CUDA graphs. Argument: `callables` (make_graphed_callables), `capture` (a whole step), or `pool` (a shared one)."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn

STEPS, BATCH, WIDTH = 5, 64, 1024


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)).cuda()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, WIDTH, device="cuda"), torch.randn(BATCH, WIDTH, device="cuda")


def callables() -> None:
    """Forward and backward are graphs of their own; optimizer and an eager layer stand outside."""
    first, second, head = network(), network(), nn.Linear(WIDTH, WIDTH).cuda()
    x, _ = data()
    samples = ((x,), (x.clone().requires_grad_(),))
    graphed: Any = torch.cuda.make_graphed_callables((first, second), samples)
    parameters = [p for module in (*graphed, head) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    for _ in range(STEPS):
        x, target = data()
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(head(graphed[1](graphed[0](x))), target).backward()
        optimizer.step()


def capture() -> None:
    """A step with its optimizer is captured after three warm-up steps on a side stream, and replayed."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    static_x, static_target = data()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = nn.functional.mse_loss(model(static_x), static_target)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_loss = step()
    before = torch.cuda.memory_allocated()
    for _ in range(STEPS):
        x, target = data()
        static_x.copy_(x)
        static_target.copy_(target)
        graph.replay()
        print(static_loss.item())
    del x, target
    # Replays allocate nothing.
    assert torch.cuda.memory_allocated() == before


def pool() -> None:
    """Graphs for several batch sizes share a pool, the largest first, as servers do."""
    model = network().eval()
    shared = None
    graphs: list[tuple[torch.cuda.CUDAGraph, torch.Tensor]] = []
    reserved = []
    with torch.inference_mode():
        for batch in (64, 32, 16, 8):
            x = torch.randn(batch, WIDTH, device="cuda")
            model(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=shared):
                output = model(x)
            shared = shared or graph.pool()
            graphs.append((graph, output))
            reserved.append(torch.cuda.memory_reserved())
        for graph, _ in graphs:
            graph.replay()
    # Later graphs reuse what the first one's intermediate results left in the pool.
    assert reserved[-1] == reserved[0], reserved


globals()[sys.argv[1]]()
torch.cuda.synchronize()
print(json.dumps({"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}))
