"""Programs whose allocator histories other people recorded on real GPUs, in our own words; prints the history as JSON.

Argument: `attention` (tests/data/snapshots/silmont2000_mem_snapshot_*), `linear` and `linear_no_grad`
(shreyansh26_*_profile_*), or `language_model` (silmont2000_memory_forward_fp32_128_*).
"""

# Layers give `Any` when called; a variable to hold it would change when tensors are freed.
# mypy: disable-error-code="no-any-return"

import json
import sys

import torch
from torch import nn

HELD: list[object] = []
"""What the recorded programs still had at their ends."""


def record() -> None:
    """The history begins here."""
    torch.cuda.memory._record_memory_history(max_entries=10_000)


class Norm(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        size = size / x.shape[-1] ** 0.5 + 1e-5
        scale = size.reciprocal()
        return x * scale * self.weight


class Attention(nn.Module):
    """Causal attention of several heads, its positions as rotations."""

    cosines: torch.Tensor
    sines: torch.Tensor

    def __init__(self, context: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.register_buffer("cosines", torch.zeros(context, width // heads))
        self.register_buffer("sines", torch.zeros(context, width // heads))

    def rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cosines, sines = self.cosines[positions], self.sines[positions]
        half = x.shape[-1] // 2
        return x * cosines + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sines

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def by_head(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, length, self.heads, -1).transpose(1, 2)

        query, key, value = by_head(self.query(x)), by_head(self.key(x)), by_head(self.value(x))
        query = self.rotated(query, positions)
        key = self.rotated(key, positions)
        seen = torch.tril(torch.ones(length, length, device=x.device)).bool()
        result = attend(query, key, value, seen)
        result = result.transpose(1, 2)
        joined = result.reshape(batch, length, width)
        return self.output(joined)


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension."""
    largest = scores.max(dim=-1, keepdim=True).values
    powers = torch.exp(scores - largest)
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Attention to what is `seen`."""
    scores = torch.einsum("...qd,...kd->...qk", query, key) / query.shape[-1] ** 0.5
    scores = scores.masked_fill(~seen, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, value)


class FeedForward(nn.Module):
    """A gated layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x)
        up = self.up(x)
        return self.down(gate * torch.sigmoid(gate) * up)


class Block(nn.Module):
    """Norm, attention, norm, feed-forward, with residuals."""

    def __init__(self, context: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm(width) for _ in range(2))
        self.attention, self.feed_forward = Attention(context, width, heads), FeedForward(width, hidden)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        normed = self.norms[0](x)
        attended = self.attention(normed, positions)
        middle = x + attended
        normed_again = self.norms[1](middle)
        fed = self.feed_forward(normed_again)
        return middle + fed


class LanguageModel(nn.Module):
    """A decoder with rotary positions, RMS norms and gated feed-forward layers, in the order of the recorded one."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(context, width, heads, hidden) for _ in range(layers))
        self.norm, self.logits = Norm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        for block in self.blocks:
            x = block(x, positions)
        logits = self.logits(self.norm(x))
        del positions, x
        return logits


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
