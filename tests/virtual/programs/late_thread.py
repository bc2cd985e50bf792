"""Ends while a thread of the autograd engine is in Python code that a C++ destructor or call waits for."""

import threading
import time

import torch

entered = threading.Event()


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ANN001, ANN205
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # noqa: ANN001, ANN205
        entered.set()
        time.sleep(1.0)
        return gradient


loss = Slow.apply(torch.ones(4, device="cuda", requires_grad=True)).sum()
threading.Thread(target=loss.backward, daemon=True).start()
entered.wait()
print("end")
