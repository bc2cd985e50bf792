"""Ends while a thread of the autograd engine is in Python code that a C++ destructor or call waits for."""

import threading
import time
from typing import Any

import torch

entered = threading.Event()


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        entered.set()
        time.sleep(1.0)
        return gradient


loss = Slow.apply(torch.ones(4, device="cuda", requires_grad=True)).sum()
threading.Thread(target=loss.backward, daemon=True).start()
entered.wait()
print("end")
