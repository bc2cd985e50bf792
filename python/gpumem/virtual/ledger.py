"""What each process used of each device, as the library wrote it down (`rust/gpumem-vgpu/src/ledger.rs`)."""

from __future__ import annotations

import struct
from pathlib import Path

from gpumem.virtual.run_report import ProcessUse

_DEVICE = struct.Struct("=5Q")


def processes(folder: Path) -> tuple[ProcessUse, ...]:
    """Devices that processes used, in the order of process numbers.

    Args:
        folder: Where the library wrote, `GPUMEM_VGPU_LEDGER`.
    """
    found = []
    for file in sorted(folder.iterdir(), key=lambda file: int(file.name)):
        for index, numbers in enumerate(_DEVICE.iter_unpack(file.read_bytes())):
            _, peak, context, refusals, refused = numbers
            if peak or context:
                found.append(
                    ProcessUse(
                        process=int(file.name),
                        device=index,
                        device_peak_bytes=peak + context,
                        context_bytes=context,
                        refusals=refusals,
                        largest_refused_bytes=refused,
                    )
                )
    return tuple(found)
