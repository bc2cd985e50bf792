"""What was measured in the process on the device, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The device and the software that ran on it.

    Attributes:
        on: As it was asked for: `cuda:0` or `virtual:rtx3090`.
        name: The device's own name.
        capability: Compute capability.
        total_bytes: Its memory, as `torch.cuda.mem_get_info()` has it.
        others_bytes: Memory that was taken before this process used the device: other processes, and the driver itself.
        context_bytes: What the process takes outside PyTorch's segments once CUDA is up.
        measured_by: Where device bytes come from: `virtual device`, `NVML, this process`, `NVML, difference` or
            `mem_get_info, difference`.
        driver: Version of the driver, or an empty string.
        torch: Version of PyTorch.
        cuda: Version of CUDA that it was built with.
        cudnn: Version of cuDNN as it numbers itself, 0 without.
        python: Version of Python.
    """

    on: str
    name: str
    capability: str
    total_bytes: int
    others_bytes: int
    context_bytes: int
    measured_by: str
    driver: str
    torch: str
    cuda: str
    cudnn: int
    python: str

    @property
    def is_virtual(self) -> bool:
        """Whether it is gpumem's virtual GPU."""
        return self.measured_by == "virtual device"


@dataclass(frozen=True, kw_only=True)
class StepPeaks:
    """Peaks of one step, in bytes.

    Attributes:
        name: `setup` (the model moved to the device), `step 1`, ...
        requested_bytes: Bytes asked for.
        allocated_bytes: `torch.cuda.max_memory_allocated()`.
        reserved_bytes: `torch.cuda.max_memory_reserved()`.
        outside_bytes: Of the process, outside PyTorch's segments, at the end of the step: the context, libraries.
        seconds: Time of the step; None on a virtual device.
    """

    name: str
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    outside_bytes: int
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """How a run ended, and where memory stood.

    Attributes:
        outcome: `ran`, `out of memory`, `failed`, `crashed` or `timed out`.
        message: Text of the exception, or how the process ended; empty when it ran.
        ended_in: Step and phase it ended in when it did not run through.
        batch: Batch size.
        allowed_bytes: What the allocator was allowed to take, or None for all that the device has.
        steps: Setup and the steps that were finished.
        retries: How often cached segments were given back to find room.
        out_of_memory: How often there was no room even so.
        guessed: Calls that the virtual device answered with a guessed size.
        host_reads: Reads of values from the virtual device, which were zeros.
    """

    outcome: str
    message: str = ""
    ended_in: str = ""
    batch: int
    allowed_bytes: int | None = None
    steps: tuple[StepPeaks, ...] = ()
    retries: int = 0
    out_of_memory: int = 0
    guessed: tuple[str, ...] = ()
    host_reads: int = 0

    @property
    def ran(self) -> bool:
        """Whether all steps were run."""
        return self.outcome == "ran"

    @property
    def requested_peak_bytes(self) -> int:
        """The largest of all steps."""
        return max((step.requested_bytes for step in self.steps), default=0)

    @property
    def allocated_peak_bytes(self) -> int:
        """The largest of all steps."""
        return max((step.allocated_bytes for step in self.steps), default=0)

    @property
    def reserved_peak_bytes(self) -> int:
        """The largest of all steps."""
        return max((step.reserved_bytes for step in self.steps), default=0)

    @property
    def device_peak_bytes(self) -> int:
        """The largest of all steps: segments and what the process takes outside of them."""
        return max((step.reserved_bytes + step.outside_bytes for step in self.steps), default=0)

    @property
    def outside_bytes(self) -> int:
        """The context and libraries, at most."""
        return max((step.outside_bytes for step in self.steps), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Measurement:
        """Inverse of `to_dict`."""
        steps = tuple(StepPeaks(**step) for step in fields["steps"])
        return cls(**{**fields, "steps": steps, "guessed": tuple(fields["guessed"])})
