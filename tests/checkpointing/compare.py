"""Two runs of one step, compared bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from gpumem import loop
from gpumem.checkpointing import OPTIONS, apply_regions
from gpumem.checkpointing.options import OFFLOAD, is_selective
from gpumem.checkpointing.selective import selective_contexts_exist

AVAILABLE = [
    option for option in OPTIONS if option != OFFLOAD and (selective_contexts_exist() or not is_selective(option))
]
"""The options of the torch that is installed with which regions run again."""


@dataclass(frozen=True)
class Outcome:
    """What one training step leaves behind."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    random_state: torch.Tensor


def loss_of(output: Any) -> torch.Tensor:
    """The sum of the squared means of all float tensors in `output`, weighted so that their gradients differ."""
    tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    assert tensors, "the output has no graph"
    terms = [tensor.float().square().mean() * (1 + index) for index, tensor in enumerate(tensors)]
    return torch.stack(terms).sum()


def step(model: nn.Module, inputs: Any, *, autocast: bool = False, calls: int = 1) -> Outcome:
    """One forward and backward pass from a fixed seed."""
    model.zero_grad()
    torch.manual_seed(11)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        outputs = [loop.call(model, inputs) for _ in range(calls)]
        loss = loss_of(outputs)
    loss.backward()
    return Outcome(
        [leaf.detach() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)],
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
        {name: buffer.clone() for name, buffer in model.named_buffers()},
        torch.get_rng_state(),
    )


def differences(first: Outcome, second: Outcome, *, exact: bool = True) -> list[str]:
    """What is not equal bit for bit, or, if not `exact`, but for rounding; NaN is not expected anywhere."""

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        return torch.equal(a, b) if exact else torch.allclose(a, b, rtol=1e-5, atol=1e-8)

    found = []
    if len(first.outputs) != len(second.outputs):
        found.append("number of outputs")
    pairs = zip(first.outputs, second.outputs, strict=False)
    found += [f"output {index}" for index, (a, b) in enumerate(pairs) if not same(a, b)]
    for kind, a, b in (
        ("gradient", first.gradients, second.gradients),
        ("buffer", first.buffers, second.buffers),
    ):
        found += [f"{kind} {name} is there once" for name in a.keys() ^ b.keys()]
        found += [f"{kind} {name}" for name in a.keys() & b.keys() if not same(a[name], b[name])]
    if not torch.equal(first.random_state, second.random_state):
        found.append("random state")
    return found


def effect(
    make: Callable[[], nn.Module],
    inputs: Any,
    regions: Mapping[str, str],
    *,
    autocast: bool = False,
    calls: int = 1,
    exact: bool = True,
) -> list[str]:
    """What differs between a training step with a plan and without, the model being the same."""
    torch.manual_seed(3)
    model = make().train()
    planned = copy.deepcopy(model)
    plain = step(model, inputs, autocast=autocast, calls=calls)
    assert plain.gradients
    with apply_regions(planned, regions):
        return differences(plain, step(planned, inputs, autocast=autocast, calls=calls), exact=exact)


def saved_bytes(model: nn.Module, inputs: Any) -> int:
    """Bytes of distinct storages that autograd saves in a forward pass, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = loop.call(model, inputs)
    del output
    return sum(seen.values())
