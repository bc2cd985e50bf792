"""What the processes of a run used of each device, as the library wrote it down (`rust/gpumem-vgpu/src/ledger.rs`)."""

from __future__ import annotations

import struct
from pathlib import Path

from gpumem.virtual.run_report import DeviceTotal, ProcessUse

MOST_DEVICES = 16
_PEAKS = struct.Struct(f"={MOST_DEVICES}Q")
_ROW = struct.Struct(f"={2 + 5 * MOST_DEVICES}Q")


def read(file: Path) -> tuple[tuple[ProcessUse, ...], tuple[DeviceTotal, ...]]:
    """What each process used of each device, in the order in which they began, and what all used of each.

    Args:
        file: The common file, `GPUMEM_VGPU_LEDGER`; none was made if no process used a device.
    """
    if not file.exists():
        return (), ()
    data = file.read_bytes()
    processes: list[ProcessUse] = []
    for process, _, *numbers in _ROW.iter_unpack(data[_PEAKS.size :]):
        if process == 0:
            break
        for device in range(MOST_DEVICES):
            _, peak, context, refusals, refused = numbers[5 * device : 5 * device + 5]
            if peak or context or refusals:
                processes.append(
                    ProcessUse(
                        process=process,
                        device=device,
                        device_peak_bytes=peak + context,
                        context_bytes=context,
                        refusals=refusals,
                        largest_refused_bytes=refused,
                    )
                )
    users = [use.device for use in processes]
    totals = tuple(
        DeviceTotal(device=device, device_peak_bytes=peak, processes=users.count(device))
        for device, peak in enumerate(_PEAKS.unpack_from(data))
        if device in users
    )
    return tuple(processes), totals
