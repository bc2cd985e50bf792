"""Trains a small network; prints PyTorch's own peaks. Arguments: batch, steps."""

import json
import sys

import torch
from torch import nn

batch, steps = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
images, labels = torch.randn(batch, 3, 64, 64, device="cuda"), torch.zeros(batch, dtype=torch.long, device="cuda")
model(images[:1])
optimizer = torch.optim.Adam(model.parameters())
for _ in range(steps):
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if loss.item() > 0:
        raise RuntimeError("something was computed")
stats = torch.cuda.memory_stats()
torch.cuda.reset_peak_memory_stats()
print(
    json.dumps(
        {
            "arguments": sys.argv[1:],
            "name": torch.cuda.get_device_name(0),
            "devices": torch.cuda.device_count(),
            "total": torch.cuda.mem_get_info()[1],
            **{name: stats[f"{name}_bytes.all.peak"] for name in ("requested", "allocated", "reserved")},
        }
    )
)
