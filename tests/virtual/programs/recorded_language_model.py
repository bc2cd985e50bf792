"""A decoder with rotary positions, RMS norms and gated feed-forward layers, in the order of a recorded program."""

import torch
from torch import nn


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
    """Embedding, blocks, norm, logits."""

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
