"""Runs a job in the process on the device and measures each of its steps."""

from __future__ import annotations

import contextlib
import gc
import importlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from gpumem.checkpointing import apply_regions
from gpumem.checkpointing.caches import caches_left_out
from gpumem.extraction.inputs import make_inputs
from gpumem.extraction.optimizer import optimizer_factory
from gpumem.loop import (
    PURE_DTYPES,
    infer,
    matmul_precision,
    optimizers_in_backward,
    prepare_on_host,
    train,
    train_with,
)
from gpumem.validation.device_memory import DeviceMemory
from gpumem.validation.job import Job
from gpumem.validation.measurement import Measurement, StepPeaks

_HISTORY_ENTRIES = 2_000_000
Progress = Callable[[str], None]
Kept = TypeVar("Kept")


def clean() -> int:
    """Return everything to the driver; the answer is what stays reserved."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


@dataclass
class Meter:
    """Reads PyTorch's counters at the borders of the steps.

    Attributes:
        memory: The device's account.
        progress: Told where the loop is.
        timed: Whether seconds mean anything here.
        steps: Setup and the steps that are finished.
        place: Step and phase the loop is in.
    """

    memory: DeviceMemory
    progress: Progress
    timed: bool
    steps: list[StepPeaks] = field(default_factory=list)
    place: str = "setup"
    _since: float = 0.0

    def start(self) -> None:
        """From here on."""
        torch.cuda.reset_peak_memory_stats()
        self.progress(self.place)
        self._since = time.perf_counter()

    def mark(self, phase: str) -> None:
        """A border of the loop's phases."""
        if not self.steps:
            self._read("setup")
        if phase == "end":
            self._read(f"step {len(self.steps)}")
            return
        self.place = f"step {len(self.steps)}, {phase}"
        self.progress(self.place)

    def stopped(self) -> None:
        """The loop ended early: what was reached in its last step."""
        self._read(self.place.partition(",")[0])

    def _read(self, name: str) -> None:
        torch.cuda.synchronize()
        now = time.perf_counter()
        stats = torch.cuda.memory_stats()
        self.steps.append(
            StepPeaks(
                name=name,
                requested_bytes=stats["requested_bytes.all.peak"],
                allocated_bytes=stats["allocated_bytes.all.peak"],
                reserved_bytes=stats["reserved_bytes.all.peak"],
                outside_bytes=max(0, self.memory.process_bytes() - stats["reserved_bytes.all.current"]),
                seconds=now - self._since if self.timed else None,
            )
        )
        torch.cuda.reset_peak_memory_stats()
        self._since = time.perf_counter()


def measure(
    job: Job,
    batch: int,
    allowed_bytes: int | None,
    memory: DeviceMemory,
    progress: Progress,
    keep: Callable[[dict[str, Any]], Kept],
) -> tuple[Measurement, Kept | None]:
    """Run the job.

    Args:
        job: What is run.
        batch: Batch size.
        allowed_bytes: What the allocator may take; None for all of the device.
        memory: The device's account.
        progress: Told where the loop is.
        keep: Takes what is wanted of PyTorch's snapshot, which has every event of the allocator in it.

    Returns:
        The measurement, and what was kept; None of it after an error that broke the device.
    """
    meter = Meter(memory, progress, timed=memory.measured_by != "virtual device")
    retries, failures, reads = *_counts(), memory.host_reads()
    about: dict[str, Any] = {"batch": batch, "allowed_bytes": allowed_bytes}
    kept: Kept | None = None
    try:
        _limit(allowed_bytes)
        progress("building the model")
        model = _host_model(job)
        torch.cuda.memory._record_memory_history(
            "all", context=None, stacks="python", max_entries=_HISTORY_ENTRIES, clear_history=True
        )
        meter.start()
        _loop(job, model, batch, meter)
        about["outcome"] = "ran"
    except BaseException as error:
        ran_out = isinstance(error, torch.OutOfMemoryError)
        about |= {"outcome": "out of memory" if ran_out else "failed", "ended_in": meter.place}
        about["message"] = str(error) if ran_out else f"{type(error).__name__}: {error}"
        _forget(error)
        # After some errors of a real device every call fails.
        with contextlib.suppress(RuntimeError):
            meter.stopped()
    with contextlib.suppress(RuntimeError):
        kept = keep(torch.cuda.memory._snapshot())
        torch.cuda.memory._record_memory_history(None)
        _limit(None)
    after = _counts()
    return Measurement(
        **about,
        steps=tuple(meter.steps),
        retries=after[0] - retries,
        out_of_memory=after[1] - failures,
        guessed=memory.guessed(),
        host_reads=memory.host_reads() - reads,
    ), kept


def _limit(allowed_bytes: int | None) -> None:
    """What the allocator may take, as PyTorch limits it: a fraction of the device's memory, rounded down to a byte."""
    total = torch.cuda.mem_get_info()[1]
    if allowed_bytes is None or allowed_bytes >= total:
        torch.cuda.set_per_process_memory_fraction(1.0)
        return
    fraction = allowed_bytes / total
    while int(fraction * total) > allowed_bytes:
        fraction -= 2**-53
    torch.cuda.set_per_process_memory_fraction(fraction)


def _host_model(job: Job) -> nn.Module:
    torch.set_default_dtype(job.default_dtype)
    torch.backends.cudnn.enabled = job.cudnn_enabled
    if job.config.mode == "train":
        # Optimizers import it at first use, in the middle of a step.
        importlib.import_module("torch._dynamo")
    model = prepare_on_host(job.build(), job.config)
    if job.regions is not None:
        caches_left_out(model)
        apply_regions(model, job.regions)
    _seed()
    if clean() != 0:
        raise RuntimeError(f"{torch.cuda.memory_reserved()} bytes stay reserved before the run")
    return model


def _loop(job: Job, model: nn.Module, batch: int, meter: Meter) -> None:
    config = job.config
    model.cuda()

    def next_batch() -> tuple[Any, Any]:
        inputs = make_inputs(job.inputs, batch, "cuda", PURE_DTYPES.get(config.precision), config.channels_last)
        _finite(inputs)
        return inputs, None if job.target is None else make_inputs(job.target, batch, "cuda", None, False)

    with matmul_precision(config):
        if config.mode == "infer":
            infer(model, next_batch, config, meter.mark)
            return
        make_optimizer, _ = optimizer_factory(job.optimizer, one_by_one=config.step_in_backward)
        parameters = [p for p in model.parameters() if p.requires_grad]
        if config.step_in_backward:
            optimizers_in_backward(make_optimizer, parameters)
            train(model, None, next_batch, job.criterion, config, meter.mark)
            return
        optimizer = make_optimizer(parameters)
        if job.step is not None:
            train_with(job.step, model, optimizer, next_batch, config, meter.mark)
        else:
            train(model, optimizer, next_batch, job.criterion, config, meter.mark)


def _finite(inputs: Any) -> None:
    """Zeros in place of whatever lies in new memory.

    With a NaN in it a GradScaler skips the optimizer's steps, and with them the state that they allocate.
    """
    if isinstance(inputs, torch.Tensor):
        if inputs.is_floating_point():
            inputs.zero_()
    elif isinstance(inputs, (Mapping, tuple, list)):
        for value in inputs.values() if isinstance(inputs, Mapping) else inputs:
            _finite(value)


def _seed() -> None:
    """The seeds of gpumem's traces (`gpumem.extraction.caller.random_state_kept`): same layer drop and masks."""
    random.seed(0)
    torch.manual_seed(0)
    import numpy

    numpy.random.seed(0)


def _counts() -> tuple[int, int]:
    stats = torch.cuda.memory_stats()
    return int(stats.get("num_alloc_retries", 0)), int(stats.get("num_ooms", 0))


def requests(snapshot: Mapping[str, Any]) -> list[int]:
    """Bytes of every request in a snapshot of PyTorch's, in order."""
    trace = snapshot["device_traces"][torch.cuda.current_device()]
    return [entry["size"] for entry in trace if entry["action"] == "alloc"]


def _forget(error: BaseException) -> None:
    """Frames of a failed run hold its tensors."""
    seen: BaseException | None = error
    while seen is not None:
        frames = seen.__traceback__
        while frames is not None:
            # The frame of `measure` is still running.
            if frames.tb_frame.f_code is not measure.__code__:
                frames.tb_frame.clear()
            frames = frames.tb_next
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
