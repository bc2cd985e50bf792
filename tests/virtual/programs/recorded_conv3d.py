"""A recorded forward pass of Conv3d and BatchNorm3d, in our own words; prints the allocator's history as JSON.

tests/data/snapshots/HugePandaCoder_my_snapshot_e67173f_*: cells on five grids, from the coarsest to the finest, each
updated some times from its neighbours, without gradients. What the recorded program did after that (a loss, and a step
of training on patches) is not in here.
"""

# Layers give `Any` when called; a variable to hold it would change when tensors are freed.
# mypy: disable-error-code="no-any-return"

import json

import torch
from torch import nn

GRIDS = ((320, 320, 24), (160, 160, 12), (80, 80, 6), (40, 40, 6), (20, 20, 6))
UPDATES = (5, 5, 5, 5, 20)
BATCH, CHANNELS, HIDDEN = 6, 16, 64


class Cells(nn.Module):
    """The change of each cell from what it and its neighbours hold; the first channel is the image and stays."""

    def __init__(self) -> None:
        super().__init__()
        self.around = nn.Conv3d(CHANNELS, CHANNELS, 3, padding=1, padding_mode="reflect", groups=CHANNELS)
        self.norm = nn.BatchNorm3d(HIDDEN, track_running_stats=False)
        self.inner = nn.Linear(2 * CHANNELS, HIDDEN)
        self.outer = nn.Linear(HIDDEN, CHANNELS, bias=False)

    def seen(self, cells: torch.Tensor) -> torch.Tensor:
        around = self.around(cells)
        return torch.cat((cells, around), dim=1)

    def updated(self, state: torch.Tensor) -> torch.Tensor:
        cells = state.transpose(1, 4)
        change = self.seen(cells)
        change = change.transpose(1, 4)
        change = self.inner(change)
        change = change.transpose(1, 4)
        change = self.norm(change)
        change = change.transpose(1, 4)
        change = torch.relu(change)
        change = self.outer(change)
        # Half of the cells take part, drawn on the host.
        awake = torch.rand(*change.shape[:4], 1) > 0.5
        awake = awake.float().to(change.device)
        change = change * awake
        cells = cells + change.transpose(1, 4)
        return cells.transpose(1, 4)

    def forward(self, state: torch.Tensor, updates: int) -> torch.Tensor:
        for _ in range(updates):
            updated = self.updated(state).clone()
            state = torch.cat((state[..., :1], updated[..., 1:]), dim=4)
        return state


@torch.no_grad()
def run(levels: nn.ModuleList, image: torch.Tensor) -> None:
    """From the coarsest grid to the finest."""
    first = torch.zeros(BATCH, *GRIDS[-1], CHANNELS, device="cuda")
    coarse = nn.functional.interpolate(image, size=GRIDS[-1]).permute(0, 2, 3, 4, 1)
    first[..., :1] = coarse
    state = first
    del coarse
    for level in reversed(range(len(GRIDS))):
        state = levels[level](state, UPDATES[level])
        if level == 0:
            break
        state = state.permute(0, 4, 1, 2, 3)
        factors = tuple(fine // rough for fine, rough in zip(GRIDS[level - 1], GRIDS[level], strict=True))
        state = nn.Upsample(scale_factor=factors, mode="nearest")(state)
        fine_image = nn.functional.interpolate(image, size=GRIDS[level - 1])
        for sample in range(BATCH):
            state[sample, :1] = fine_image[sample]
        state = state.permute(0, 2, 3, 4, 1)
    print_history()


def print_history() -> None:
    """While everything is still there; asking for it is an event itself."""
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    print(json.dumps([[event["action"], event["addr"], event["size"], 0] for event in events[BEFORE:]]))


cells = nn.ModuleList(Cells() for _ in GRIDS).cuda().eval()
image, target = (torch.zeros(BATCH // 2, *GRIDS[0], 1).cuda() for _ in range(2))
torch.cuda.memory._record_memory_history(max_entries=10_000)
# The history begins with what was requested last.
BEFORE = len(torch.cuda.memory._snapshot()["device_traces"][0])
images, targets = torch.cat([image] * 2), torch.cat([target] * 2)
run(cells, images.permute(0, 4, 1, 2, 3))
