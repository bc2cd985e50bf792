"""What came of a run on the virtual device, as plain data."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """Where memory stood on one device, as far as the program's first process used it.

    Attributes:
        index: Number of the device, whatever `CUDA_VISIBLE_DEVICES` makes the program call it.
        requested_peak_bytes: What the program asked for at once, at most.
        allocated_peak_bytes: Blocks handed out, `torch.cuda.max_memory_allocated()`.
        reserved_peak_bytes: Segments taken from the driver, `torch.cuda.max_memory_reserved()`.
        device_peak_bytes: All that the process took: segments, other libraries' memory, and the CUDA context.
        context_bytes: The context in it, which is a figure of other people's cards and not of this run.
        total_bytes: What the card has.
        retries: How often PyTorch had to give cached segments back to find room.
        out_of_memory: How often it found none.
    """

    index: int
    requested_peak_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    device_peak_bytes: int
    context_bytes: int
    total_bytes: int
    retries: int
    out_of_memory: int


@dataclass(frozen=True, kw_only=True)
class ProcessUse:
    """What one process took from one device; known of all processes, however they ended.

    Attributes:
        process: Its number.
        device: Number of the device, whatever `CUDA_VISIBLE_DEVICES` makes the program call it.
        device_peak_bytes: All that it took: segments, other libraries' memory, and the CUDA context.
        context_bytes: The context in it, an assumption.
        refusals: Requests to the driver that found too little memory (PyTorch gives cached segments back and retries).
        largest_refused_bytes: The largest of them.
    """

    process: int
    device: int
    device_peak_bytes: int
    context_bytes: int
    refusals: int
    largest_refused_bytes: int


@dataclass(frozen=True, kw_only=True)
class DeviceTotal:
    """What all processes together took from one device, whose memory they share.

    Attributes:
        device: Number of the device.
        device_peak_bytes: The most at one time, with a context for each process.
        processes: How many used it, at one time or one after the other.
    """

    device: int
    device_peak_bytes: int
    processes: int


@dataclass(frozen=True, kw_only=True)
class HostRead:
    """A place in the program that read values from the device: it got zeros.

    Attributes:
        site: `file:line function`, the innermost frame outside PyTorch.
        use: `branch` where a branch, a loop or an assertion hangs on the value; `value` where the function does
            something else with it (prints it, adds it up); `hidden` where a library read it on the way (`nonzero`, a
            mask, `GradScaler.step`) or there is no source to look at.
        reads: How often.
        read_bytes: How much in all.
        scalars: Reads of at most 16 bytes (`.item()`, `bool(tensor)`).
    """

    site: str
    use: str
    reads: int
    read_bytes: int
    scalars: int


@dataclass(frozen=True, kw_only=True)
class HeldMemory:
    """What a place in the program holds.

    Attributes:
        site: `file:line function`, the innermost frame outside PyTorch that allocated it.
        held_bytes: Blocks of it that are in use, rounded as the allocator rounds them.
        blocks: How many they are.
    """

    site: str
    held_bytes: int
    blocks: int


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What came of a run.

    Attributes:
        gpu: The card.
        torch: Version of PyTorch.
        exit_code: Of the program; negative for the number of the signal that ended it.
        outcome: `finished`, `out of memory`, `failed` (an exception) or `died` (no report came back).
        message: The exception's text, or an empty string.
        devices: Devices that the program's first process used, with PyTorch's own peaks.
        processes: What every process took, those that the program started included.
        totals: What they took together from each device.
        optimizer_steps: Steps of all optimizers.
        settled_after_steps: Steps after which no peak rose any more, or None without steps.
        held: When the program ended out of memory: places that held most of it, the most bytes first.
        host_reads: Places that read values from the device, those first on which branches hang.
        unsupported: Calls of CUDA libraries that the virtual device refused, with how often.
        guessed_sizes: Calls that asked for a size which only a real device knows, with how often; a few bytes to a few
            megabytes each are missing or too many.
        cudnn: Who gave the workspaces of convolutions: `real` (the installed cuDNN), `stub` (zero bytes), or an empty
            string where nobody was asked.
        launches: Kernels, library calls and graphs that were asked for.
        seconds: Time of the program.
    """

    gpu: str
    torch: str
    exit_code: int
    outcome: str
    message: str = ""
    devices: tuple[DeviceUse, ...] = ()
    processes: tuple[ProcessUse, ...] = ()
    totals: tuple[DeviceTotal, ...] = ()
    optimizer_steps: int = 0
    settled_after_steps: int | None = None
    held: tuple[HeldMemory, ...] = ()
    host_reads: tuple[HostRead, ...] = ()
    unsupported: dict[str, int] = dataclasses.field(default_factory=dict)
    guessed_sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    cudnn: str = ""
    launches: int = 0
    seconds: float = 0.0

    def to_json(self) -> str:
        """The report as JSON, with the version of its schema."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> RunReport:
        """Inverse of `to_json`.

        Raises:
            ValueError: if it is of another schema.
        """
        fields: dict[str, Any] = json.loads(text)
        if fields.pop("schema", None) != SCHEMA:
            raise ValueError(f"not a report of schema {SCHEMA}")
        devices = tuple(DeviceUse(**device) for device in fields.pop("devices"))
        processes = tuple(ProcessUse(**process) for process in fields.pop("processes"))
        totals = tuple(DeviceTotal(**total) for total in fields.pop("totals"))
        held = tuple(HeldMemory(**place) for place in fields.pop("held"))
        reads = tuple(HostRead(**read) for read in fields.pop("host_reads"))
        return cls(**fields, devices=devices, processes=processes, totals=totals, held=held, host_reads=reads)
