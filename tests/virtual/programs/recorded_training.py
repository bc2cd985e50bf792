"""A training step whose allocator history somebody recorded on a real GPU, in our own words; prints it as JSON.

tests/data/snapshots/kkaitlyn111_*_ctx128_fullstep_*: a language model of 2.7 billion parameters in fp32, forward,
backward and an AdamW written by hand, on an 80 GB card.
"""

# Layers give `Any` when called; a variable to hold it would change when tensors are freed.
# mypy: disable-error-code="no-any-return"

import json

import torch
from torch import nn

VOCABULARY, CONTEXT, WIDTH, HEADS, HIDDEN, LAYERS, BATCH = 10_000, 128, 2560, 32, 10_240, 32, 4
CUDA = torch.device("cuda")


class Norm(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH, device=CUDA))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        root = (size**2 / WIDTH + 1e-5).sqrt()
        return self.weight * (x / root)


class Linear(nn.Module):
    """A product without a bias, whose result lies in memory with the positions next to each other."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=CUDA))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        return torch.bmm(self.weight[None], rows.T[None]).squeeze(0).T.view(*x.shape[:-1], -1)


class Rotation(nn.Module):
    """Positions as rotations of pairs."""

    cosines_and_sines: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cosines_and_sines", torch.empty(2, CONTEXT, WIDTH // HEADS // 2, device=CUDA))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cosines, sines = self.cosines_and_sines[0][positions], self.cosines_and_sines[1][positions]
        cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
        rotated = torch.empty_like(x)
        rotated[..., ::2] = x[..., ::2] * cosines - x[..., 1::2] * sines
        rotated[..., 1::2] = x[..., ::2] * sines + x[..., 1::2] * cosines
        return rotated


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension."""
    largest = scores.max(dim=-1, keepdim=True).values
    powers = torch.exp(scores - largest)
    return powers / powers.sum(dim=-1, keepdim=True)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Attention to what is `seen`."""
    scores = torch.einsum("...qd,...kd->...qk", query, key) / query.shape[-1] ** 0.5
    scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("...qk,...kd->...qd", softmax(scores), value)


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.rotation = Rotation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def by_head(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, length, HEADS, -1).transpose(1, 2)

        # Names are let go in this order at the end.
        flat_query, flat_key, flat_value = self.query(x), self.key(x), self.value(x)
        query, key, value = by_head(flat_query), by_head(flat_key), by_head(flat_value)
        positions = torch.arange(length, device=CUDA).expand(batch, length)
        query = self.rotation(query, positions)
        key = self.rotation(key, positions)
        seen = ~torch.triu(torch.ones(length, length, device=CUDA), diagonal=1).bool()
        result = attend(query, key, value, seen.expand(batch, HEADS, length, length))
        result = result.transpose(1, 2).reshape(batch, length, width)
        return self.output(result)


class FeedForward(nn.Module):
    """A gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = Linear(WIDTH, HIDDEN), Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate(x), self.up(x)
        return self.down(torch.sigmoid(gate) * gate * up)


class Block(nn.Module):
    """Norm, attention, norm, feed-forward, with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.attention = Norm(), Attention()
        self.second_norm, self.feed_forward = Norm(), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.attention(self.first_norm(x))
        x = x + y
        y = self.second_norm(x)
        return x + self.feed_forward(y)


class LanguageModel(nn.Module):
    """A decoder with rotary positions, RMS norms and gated feed-forward layers, in the order of the recorded one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, WIDTH, device=CUDA))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.logits = Norm(), Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding[tokens]
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean of minus the logarithm of the targets' softmax."""
    largest = logits.max(dim=-1, keepdim=True).values
    logits = logits - largest
    total = torch.exp(logits).sum(dim=-1)
    wanted = logits[torch.arange(len(targets)), targets]
    losses = total.log() - wanted
    return losses.mean()


class AdamW(torch.optim.Optimizer):
    """Written out, one parameter after the other."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state, gradient = self.state[parameter], parameter.grad.data
                mean = state.get("mean", torch.zeros_like(parameter.data))
                square = state.get("square", torch.zeros_like(parameter.data))
                mean.mul_(0.9).add_(gradient, alpha=0.1)
                square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
                divisor = square.sqrt() + 1e-8
                parameter.data.addcdiv_(mean, divisor, value=-1e-3)
                parameter.data.mul_(0.99)
                state["mean"], state["square"] = mean, square


model = LanguageModel()
tokens = torch.zeros(BATCH, CONTEXT, dtype=torch.long, device=CUDA)
optimizer = AdamW(list(model.parameters()))
# `gpumem run` keeps the last event from before; what stops recording lets go of it.
torch.cuda.memory._record_memory_history(enabled=None)
torch.cuda.memory._record_memory_history(max_entries=100_000)
logits = model(tokens)
loss = cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1))
loss.backward()
optimizer.step()
trace = torch.cuda.memory._snapshot()["device_traces"][0]
torch.cuda.memory._record_memory_history(enabled=None)
print(json.dumps([[entry["action"], entry["addr"], entry["size"]] for entry in trace]))
