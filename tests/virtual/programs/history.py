"""Records the allocator's history, writes the snapshot, and looks into it as memory_viz does."""

from __future__ import annotations

import json
import pickle
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.cuda.memory._record_memory_history(max_entries=100_000)
model = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    model(torch.randn(8, 128, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(file))
    with file.open("rb") as opened:
        snapshot = pickle.load(opened)
torch.cuda.memory._record_memory_history(enabled=None)
trace = snapshot["device_traces"][0]
now = peak = 0
for entry in trace:
    now += {"alloc": 1, "free_completed": -1}.get(entry["action"], 0) * entry["size"]
    peak = max(peak, now)
here = [entry for entry in trace if any(frame["filename"].endswith("history.py") for frame in entry["frames"])]
print(
    json.dumps(
        {
            "events": len(trace),
            "with a line of this file": len(here),
            "segments": sum(segment["total_size"] for segment in snapshot["segments"]),
            "reserved": torch.cuda.memory_reserved(),
            "peak of the history": peak,
            "requested": torch.cuda.memory_stats()["requested_bytes.all.peak"],
            "allocated": torch.cuda.max_memory_allocated(),
        }
    )
)
