"""AdamW with 8-bit states, as bitsandbytes requests its memory; nothing is computed.

Read in bitsandbytes 0.50.2, `optim/optimizer.py` (`Optimizer2State.init_state`, `update_step`), and compared with it,
run unmodified on the virtual GPU (`tests/extract/test_adamw_8bit.py`): each parameter of at least 4,096 elements has
two states of a byte per element and, for each state, a float32 scale for every 256 elements (2,048 in older versions);
two tables of 256 float32 are shared. Smaller parameters have two states in float32. The kernel works in place.
Parameters and gradients that are not contiguous are copied. With `channels_last` the order of these copies is not
bitsandbytes': in ResNet-18 requested and reserved peaks were equal, the allocated peak 64 KiB less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

# Parameters with fewer elements keep float32 states (`min_8bit_size`).
_LEAST_ELEMENTS = 4096
_BLOCK_ELEMENTS = 256
_TABLE_ELEMENTS = 256


class AdamW8bit(torch.optim.Optimizer):
    """The memory of `bitsandbytes.optim.AdamW8bit` with its defaults; parameters are not changed.

    Args:
        params: As for any optimizer.
        lr: Not used.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})
        self._tables: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Request what a step requests.

        Args:
            closure: Not used.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self.state[parameter].update(self._state(parameter))
                parameter.data = parameter.data.contiguous()
                parameter.grad = parameter.grad.contiguous()

    def _state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is kept for a parameter, requested in this order."""
        if parameter.numel() < _LEAST_ELEMENTS:
            return {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("state1", "state2")}
        device = parameter.device
        if not self._tables:
            self._tables = [torch.zeros(_TABLE_ELEMENTS, device=device) for _ in range(2)]
        state = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in ("state1", "state2")}
        blocks = -(-parameter.numel() // _BLOCK_ELEMENTS)
        state |= {name: torch.zeros((blocks,), dtype=torch.float32, device=device) for name in ("absmax1", "absmax2")}
        return state | dict(zip(("qmap1", "qmap2"), self._tables, strict=True))
