"""Copies batches ahead on a stream of their own, with record_stream and events; trains on the default stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[torch.Tensor, torch.Tensor]


class Prefetcher:
    """Keeps one batch ahead of the training loop."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader, self.stream = loader, torch.cuda.Stream(priority=-1)

    def __iter__(self) -> Iterator[Batch]:
        iterator, ahead = iter(self.loader), None
        while True:
            ready, ahead = ahead, self._copied(next(iterator, None))
            if ready is not None:
                torch.cuda.current_stream().wait_stream(self.stream)
                for tensor in ready:
                    tensor.record_stream(torch.cuda.current_stream())
                yield ready
            if ahead is None:
                return

    def _copied(self, batch: Batch | None) -> Batch | None:
        if batch is None:
            return None
        with torch.cuda.stream(self.stream):
            images = batch[0].to("cuda", non_blocking=True).sub_(0.5).div_(0.25)
            return images, batch[1].to("cuda", non_blocking=True)


def main() -> None:
    data = TensorDataset(torch.rand(64, 3, 64, 64), torch.randint(10, (64,)))
    loader = DataLoader(data, 8, shuffle=True, num_workers=2, pin_memory=True)
    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
    model(torch.zeros(1, 3, 64, 64, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    steps = 0
    start.record()
    for images, labels in Prefetcher(loader):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    end.record()
    end.synchronize()
    assert steps == 8, steps
    milliseconds = start.elapsed_time(end)
    # What one stream freed another stream does not get.
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        address = x.data_ptr()
        del x
        again = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        assert again.data_ptr() == address
        del again
    other = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert other.data_ptr() != address
    assert side.query()
    print(f"{steps} steps in {milliseconds:.1f} ms, {torch.cuda.max_memory_reserved()} bytes reserved")


main()
