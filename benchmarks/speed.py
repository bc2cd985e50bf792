"""Speed as ratios in one run: `python benchmarks/speed.py` writes `benchmarks/results/speed.md`.

- extraction (one precision, all batch sizes) against PyTorch's MemTracker (one batch size, one step) on the same model;
- one exact what-if and one `max_batch` after extraction, without and with cuDNN's own answers;
- a 7-billion-parameter Llama from its config: seconds and extra resident memory.

CPU time of one thread is taken (`time.process_time`), the best of several repetitions, since machines are noisy.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

import gpumem

RESULTS = Path(__file__).parent / "results" / "speed.md"
MODELS = ("resnet50", "vit_b_16", "swin_b")
INPUT = (3, 224, 224)
REPETITIONS = 5
GPU = "rtx3090"


def best_seconds(work: Callable[[], Any], repetitions: int = REPETITIONS) -> float:
    """Smallest CPU time of several runs."""
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def mem_tracker_seconds(make: Callable[[], nn.Module], batch: int = 32) -> float:
    """One training step under MemTracker on fake tensors, as its documentation does it."""
    # Fake construction fails for initialisers that look at values, so the model is built outside.
    model = make()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mode:
        image, target = torch.randn(batch, *INPUT), torch.zeros(batch, dtype=torch.int64)
    start = time.process_time()
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with mode, tracker:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(image), target).backward()
        optimizer.step()
    return time.process_time() - start


def compare_with_mem_tracker(name: str) -> str:
    """One row of the table."""

    def make() -> nn.Module:
        model: nn.Module = getattr(torchvision.models, name)()
        return model

    model = make()
    ours = best_seconds(lambda: gpumem.extract(model, INPUT, optimizer="sgd"))
    theirs = min(mem_tracker_seconds(make) for _ in range(2))
    spec = gpumem.extract(model, INPUT, optimizer="sgd")
    what_if = best_seconds(lambda: spec.fits(64, gpu=GPU, conv_workspaces="rules"), 20)
    largest = best_seconds(lambda: spec.max_batch(gpu=GPU, conv_workspaces="rules"), 20)
    # The process that asks cuDNN does the work: the clock.
    start = time.perf_counter()
    spec.max_batch(gpu=GPU)
    asking = time.perf_counter() - start
    known = [best_seconds(lambda: spec.fits(64, gpu=GPU), 20), best_seconds(lambda: spec.max_batch(gpu=GPU), 20)]
    cells = [f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}", f"{what_if * 1e3:.2f}", f"{largest * 1e3:.1f}"]
    cells += [f"{asking:.2f}", f"{known[0] * 1e3:.2f}", f"{known[1] * 1e3:.1f}"]
    return f"| {name} | {' | '.join(cells)} |"


def llama() -> str:
    """Llama-2-7B from its config."""
    import transformers

    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig())
    tokens = ((2048,), torch.int64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    gpumem.extract(model, {"input_ids": tokens, "labels": tokens}, precision="bf16", optimizer="adamw")
    seconds = time.process_time() - start
    extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    parameters = sum(p.numel() for p in model.parameters()) / 1e9
    return f"Llama, {parameters:.1f} billion parameters, bf16, AdamW: {seconds:.1f} s, {extra:.0f} MiB more resident."


def main() -> None:
    """Measure and write the summary."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Import costs and one-time registrations are not a model's.
    gpumem.extract(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), (3, 2, 2))
    # First: later the peak of resident memory would hide what it adds.
    large = llama()
    lines = [
        "# Speed",
        "",
        f"`python benchmarks/speed.py`, torch {torch.__version__}, {platform.machine()}; CPU seconds of one thread.",
        "",
        "Convolutions by the rules; then by cuDNN's own answers, asked for the first time (by the clock), and known.",
        "",
        (
            "| model | extraction, all batches (s) | MemTracker, one batch (s) | ratio | what-if (ms) | max_batch (ms) "
            "| max_batch, asking cuDNN (s) | what-if, known (ms) | max_batch, known (ms) |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
        *map(compare_with_mem_tracker, MODELS),
        "",
        large,
    ]
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
