"""Programs whose allocator histories other people recorded on real GPUs, in our own words; prints the history as JSON.

Argument: `attention` (tests/data/snapshots/silmont2000_mem_snapshot_*), `linear` and `linear_no_grad`
(shreyansh26_*_profile_*), or `language_model` (silmont2000_memory_forward_fp32_128_*).
"""

import json
import sys

import torch
from recorded_language_model import LanguageModel
from torch import nn

HELD: list[object] = []
"""What the recorded programs still had at their ends."""


def record() -> None:
    """The history begins here."""
    torch.cuda.memory._record_memory_history(max_entries=10_000)


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

    record()
    q, k, v = (torch.randn(8, 4096, 16, device="cuda", requires_grad=True) for _ in range(3))
    output = attend(q, k, v)
    loss = output.sum()
    loss.backward()
    HELD.extend([q, k, v, output, loss])


def linear() -> None:
    """Three forward passes of one large layer; each keeps the graph of the last until it is replaced."""
    record()
    layer = nn.Linear(10_000, 50_000, device="cuda")
    for _ in range(3):
        x = torch.randn(5_000, 10_000, device="cuda")
        output = layer(x)
    HELD.extend([layer, x, output])


def linear_no_grad() -> None:
    """The same without a graph."""
    with torch.no_grad():
        linear()


@torch.no_grad()
def language_model() -> None:
    """One forward pass of a language model of 12 layers, after another that is not recorded."""
    model = LanguageModel(vocabulary=10_000, context=128, width=768, heads=12, hidden=3072, layers=12).cuda()
    tokens = torch.zeros(4, 128, dtype=torch.long, device="cuda")
    HELD.extend([model, tokens])
    model(tokens)
    record()
    model(tokens)


globals()[sys.argv[1]]()
trace = torch.cuda.memory._snapshot()["device_traces"][0]
torch.cuda.memory._record_memory_history(enabled=None)
print(json.dumps([[entry["action"], entry["addr"], entry["size"]] for entry in trace]))
