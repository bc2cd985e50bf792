"""A run on the virtual device in words, for people."""

from __future__ import annotations

from gpumem.units import format_bytes
from gpumem.virtual.read_uses import BRANCH, HIDDEN, VALUE
from gpumem.virtual.run_report import DeviceTotal, DeviceUse, HostRead, ProcessUse, RunReport

SITES_SHOWN = 5
_USES = {BRANCH: "a branch hangs on it", HIDDEN: "read by a library on the way"}


def run_text(report: RunReport) -> str:
    """Several lines: how it ended, where memory stood on each device, and what the numbers do not hold."""
    lines = [_ending(report), ""]
    for device in report.devices:
        lines += _device(device, several=len(report.devices) > 1)
    if len(report.processes) > len(report.devices):
        lines += [_process(process) for process in report.processes]
        lines += [_total(total) for total in report.totals if total.processes > 1] + [""]
    if not report.processes:
        lines.append("No device was used.")
    lines += _notes(report)
    return "\n".join(lines).rstrip()


def _ending(report: RunReport) -> str:
    where = f"on a virtual {report.gpu} (torch {report.torch})"
    if report.outcome == "died":
        how = f"signal {-report.exit_code}" if report.exit_code < 0 else f"exit code {report.exit_code}"
        return f"The program ended by {how} {where} before it could report."
    took = f"{report.seconds:.1f} s"
    if report.outcome == "finished":
        return f"Finished after {took} {where}."
    first = report.message.splitlines()[0] if report.message else f"exit code {report.exit_code}"
    what = "Out of memory" if report.outcome == "out of memory" else "Failed"
    return f"{what} after {took} {where}: {first}"


def _process(process: ProcessUse) -> str:
    refused = f"; refused {process.refusals} times" if process.refusals else ""
    peak, context = format_bytes(process.device_peak_bytes), format_bytes(process.context_bytes)
    return (
        f"  process {process.process} on cuda:{process.device}: device peak {peak}, {context} of it assumed for the "
        f"context{refused}"
    )


def _total(total: DeviceTotal) -> str:
    peak = format_bytes(total.device_peak_bytes)
    return f"  all {total.processes} processes on cuda:{total.device}: device peak {peak} at one time"


def _device(device: DeviceUse, several: bool) -> list[str]:
    rows = [
        ("requested", device.requested_peak_bytes, "asked for by the program"),
        ("allocated", device.allocated_peak_bytes, "torch.cuda.max_memory_allocated"),
        ("reserved", device.reserved_peak_bytes, "torch.cuda.max_memory_reserved"),
        (
            "device",
            device.device_peak_bytes,
            f"of {format_bytes(device.total_bytes)}; {format_bytes(device.context_bytes)} assumed for the context",
        ),
    ]
    lines = [f"cuda:{device.index}"] if several else []
    lines += [f"  peak {name:<10}{format_bytes(size):>12}  {meaning}" for name, size, meaning in rows]
    if device.retries or device.out_of_memory:
        lines.append(
            f"  cached segments given back for room: {device.retries} times; "
            f"no room even so: {device.out_of_memory} times"
        )
    return [*lines, ""]


def _notes(report: RunReport) -> list[str]:
    lines = []
    if report.held:
        lines.append("The memory was held by what these lines allocated:")
        lines += [
            f"  {format_bytes(place.held_bytes):>12}  {place.site}  ({place.blocks} blocks)"
            for place in report.held[:SITES_SHOWN]
        ]
    if report.optimizer_steps:
        lines.append(
            f"Optimizer steps: {report.optimizer_steps}; peaks last rose by step {report.settled_after_steps}."
        )
    lines += _host_reads(report.host_reads)
    if report.unsupported:
        names = ", ".join(sorted(report.unsupported))
        lines.append(f"Refused by the virtual device: {names}.")
    if report.cudnn == "stub":
        lines.append(
            "Workspaces of convolutions were taken as zero: this cuDNN (before 9.8) does not answer without a GPU."
        )
    if report.guessed_sizes:
        lines.append(f"Sizes that only a real GPU knows were guessed: {', '.join(sorted(report.guessed_sizes))}.")
    return lines


def _host_reads(found: tuple[HostRead, ...]) -> list[str]:
    if not found:
        return []
    reads = sum(read.reads for read in found)
    deciding = [read for read in found if read.use != VALUE]
    lines = [f"Values read from the device were zeros, nothing being computed: {reads} reads."]
    if not deciding:
        return [*lines, "  No branch was seen to hang on them."]
    lines.append("  These may have sent the program another way than on a GPU:")
    lines += [f"  {read.reads:>6} x  {read.site}  ({_USES[read.use]})" for read in deciding[:SITES_SHOWN]]
    if len(deciding) > SITES_SHOWN:
        lines.append(f"  and {len(deciding) - SITES_SHOWN} more places")
    return lines
