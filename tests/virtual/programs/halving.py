"""Trains with the largest batch that fits: halves it whenever the card runs out of memory, as many scripts do.

Arguments: the first batch. Prints the batch it found as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn


def train(batch: int, steps: int = 3) -> None:
    model = torchvision.models.vit_b_32(weights=None).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        images = torch.randn(batch, 3, 224, 224, device="cuda")
        labels = torch.randint(1000, (batch,), device="cuda")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


def largest(function: Callable[[int], Any], batch: int) -> int:
    while batch > 0:
        gc.collect()
        torch.cuda.empty_cache()
        try:
            function(batch)
        except torch.OutOfMemoryError as error:
            print(f"batch {batch}: {str(error).splitlines()[0].split('. GPU')[0]}")
            batch //= 2
        else:
            return batch
    raise RuntimeError("no batch fits")


print(json.dumps({"batch": largest(train, int(sys.argv[1]))}))
