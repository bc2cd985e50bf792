"""Batches of changing length, which fragment plain segments; PYTORCH_CUDA_ALLOC_CONF decides what is reserved."""

from __future__ import annotations

import json
import os
import random

import torch
from torch import nn

random.seed(0)
model = nn.Sequential(nn.Embedding(5000, 256), nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)).cuda()
head = nn.Linear(256, 5000).cuda()
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
for _ in range(12):
    tokens = torch.zeros(8, random.randrange(64, 512, 8), dtype=torch.long, device="cuda")
    loss = nn.functional.cross_entropy(head(model(tokens)).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
segments = torch.cuda.memory_snapshot()
print(
    json.dumps(
        {
            "setting": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            "expandable": sum(segment["is_expandable"] for segment in segments),
            "segments": len(segments),
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
        }
    )
)
