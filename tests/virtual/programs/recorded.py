"""Programs whose allocator histories other people recorded on real GPUs, in our own words; prints the history as JSON.

Argument: `attention` (tests/data/snapshots/silmont2000_mem_snapshot_*) or `linear` (shreyansh26_*_profile_grad_*).
"""

import json
import sys

import torch
from torch import nn

HELD: list[object] = []
"""What the recorded programs still had at their ends."""


def attention() -> None:
    """Attention from einsum and a hand-written softmax, 8 x 4096 x 16 in fp32, forward and backward."""

    def softmax(scores: torch.Tensor) -> torch.Tensor:
        largest = scores.max(dim=-1, keepdim=True).values
        numerator = torch.exp(scores - largest)
        denominator = numerator.sum(dim=-1, keepdim=True)
        return numerator / denominator

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("...qd,...kd->...qk", q, k)
        scores = scores / q.shape[-1] ** 0.5
        weights = softmax(scores)
        return torch.einsum("...qk,...kd->...qd", weights, v)

    q, k, v = (torch.randn(8, 4096, 16, device="cuda", requires_grad=True) for _ in range(3))
    output = attend(q, k, v)
    loss = output.sum()
    loss.backward()
    HELD.extend([q, k, v, output, loss])


def linear() -> None:
    """Three forward passes of one large layer; each keeps the graph of the last until it is replaced."""
    layer = nn.Linear(10_000, 50_000, device="cuda")
    for _ in range(3):
        x = torch.randn(5_000, 10_000, device="cuda")
        output = layer(x)
    HELD.extend([layer, x, output])


torch.cuda.memory._record_memory_history(max_entries=1000)
globals()[sys.argv[1]]()
trace = torch.cuda.memory._snapshot()["device_traces"][0]
torch.cuda.memory._record_memory_history(enabled=None)
print(json.dumps([[entry["action"], entry["addr"], entry["size"]] for entry in trace]))
