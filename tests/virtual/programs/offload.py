"""Moves bytes to the host. Argument: `activations` (save_on_cpu), `optimizer` (states on the CPU), or `parameters`."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import torch
from torch import nn

WIDTH, BATCH = 1024, 4096


def network() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)))


def activations() -> dict[str, int]:
    """Saved tensors in pinned memory between forward and backward; the same step without it for comparison."""
    peaks = {}
    for name in ("on the card", "on the host"):
        model = network().cuda()
        hooks: Any = contextlib.nullcontext()
        if name == "on the host":
            hooks = torch.autograd.graph.save_on_cpu(pin_memory=True)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            with hooks:
                loss = model(torch.randn(BATCH, WIDTH, device="cuda")).square().mean()
            loss.backward()
            model.zero_grad()
        peaks[name] = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        del model, loss
    return peaks


def optimizer() -> dict[str, int]:
    """fp32 master weights and Adam's moments on the host, bf16 weights on the card."""
    model = network().cuda().to(torch.bfloat16)
    masters = [p.detach().float().cpu().pin_memory().requires_grad_() for p in model.parameters()]
    host_optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    copies = torch.cuda.Stream()
    for _ in range(3):
        model(torch.randn(BATCH, WIDTH, device="cuda", dtype=torch.bfloat16)).square().mean().backward()
        copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copies):
            for master, parameter in zip(masters, model.parameters(), strict=True):
                assert parameter.grad is not None
                parameter.grad.record_stream(copies)
                master.grad = parameter.grad.to("cpu", torch.float32, non_blocking=True)
        copies.synchronize()
        model.zero_grad()
        host_optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master, non_blocking=True)
    states = sum(p.element_size() * p.numel() for p in model.parameters())
    return {"weights": states, "peak": torch.cuda.memory_stats()["requested_bytes.all.peak"]}


def parameters() -> dict[str, int]:
    """Layers come to the card one at a time, forward only, as accelerate's CPU offload does."""
    model = network()

    def bring(module: nn.Module, args: Any) -> None:
        module.to("cuda", non_blocking=True)

    def send_back(module: nn.Module, args: Any, output: Any) -> None:
        module.to("cpu")

    for layer in model:
        layer.register_forward_pre_hook(bring)
        layer.register_forward_hook(send_back)
    with torch.inference_mode():
        model(torch.randn(BATCH, WIDTH, device="cuda"))
    layer_bytes = sum(p.element_size() * p.numel() for p in model[0].parameters())
    return {"layer": layer_bytes, "peak": torch.cuda.memory_stats()["requested_bytes.all.peak"]}


print(json.dumps(globals()[sys.argv[1]]()))
