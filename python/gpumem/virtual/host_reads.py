"""Which lines of the program read values from the device."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

from gpumem.virtual.run_report import HostRead

SCALAR_BYTES = 16
"""The largest number of PyTorch, complex128."""

_OWN_FOLDER = str(Path(__file__).parent)
_NO_FRAME = "a thread without Python code"


class HostReads:
    """Counts reads by the innermost frame of the program.

    Attributes:
        library_folders: Folders whose frames are not the program's.
    """

    def __init__(self, library_folders: tuple[str, ...]) -> None:
        self.library_folders = (*library_folders, _OWN_FOLDER)
        self._sites: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def note(self, read_bytes: int) -> None:
        """Count one read by whoever calls."""
        site = self._site(sys._getframe(1))
        with self._lock:
            counted = self._sites.setdefault(site, [0, 0, 0])
            counted[0] += 1
            counted[1] += read_bytes
            counted[2] += read_bytes <= SCALAR_BYTES

    def found(self) -> tuple[HostRead, ...]:
        """All sites, those with most scalars first."""
        with self._lock:
            reads = [
                HostRead(site=site, reads=reads, read_bytes=size, scalars=scalars)
                for site, (reads, size, scalars) in self._sites.items()
            ]
        return tuple(sorted(reads, key=lambda read: (-read.scalars, -read.reads, read.site)))

    def is_program(self, file: str) -> bool:
        """Whether a source file is neither a library's nor ours."""
        return not file.startswith((*self.library_folders, "<"))

    def _site(self, frame: FrameType | None) -> str:
        while frame is not None:
            file = frame.f_code.co_filename
            if self.is_program(file):
                return f"{file}:{frame.f_lineno} {frame.f_code.co_name}"
            frame = frame.f_back
        return _NO_FRAME
