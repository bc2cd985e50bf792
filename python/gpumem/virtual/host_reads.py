"""Which lines of the program read values from the device."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

from gpumem.virtual.read_uses import BRANCH, HIDDEN, VALUE, use_of
from gpumem.virtual.run_report import HostRead

SCALAR_BYTES = 16
"""The largest number of PyTorch, complex128."""

_OWN_FOLDER = str(Path(__file__).parent)
_NO_FRAME = "a thread without Python code"
_ORDER = (BRANCH, HIDDEN, VALUE)


class HostReads:
    """Counts reads by the innermost frame of the program.

    Attributes:
        library_folders: Folders whose frames are not the program's.
    """

    def __init__(self, library_folders: tuple[str, ...]) -> None:
        self.library_folders = (*library_folders, _OWN_FOLDER)
        self._sites: dict[tuple[str, str], list[int]] = {}
        self._known: dict[tuple[CodeType, int], tuple[str, str]] = {}
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
        """All sites, those first on which branches hang, then those with most scalars."""
        with self._lock:
            reads = [
                HostRead(site=site, use=use, reads=reads, read_bytes=size, scalars=scalars)
                for (site, use), (reads, size, scalars) in self._sites.items()
            ]
        return tuple(sorted(reads, key=lambda read: (_ORDER.index(read.use), -read.scalars, -read.reads, read.site)))

    def is_program(self, file: str) -> bool:
        """Whether a source file is neither a library's nor ours."""
        return not file.startswith((*self.library_folders, "<"))

    def _site(self, frame: FrameType | None) -> tuple[str, str]:
        """Where the program reads, and what for."""
        while frame is not None:
            code = frame.f_code
            if self.is_program(code.co_filename):
                place = (code, frame.f_lasti)
                if place not in self._known:
                    self._known[place] = f"{code.co_filename}:{frame.f_lineno} {code.co_name}", use_of(frame)
                return self._known[place]
            frame = frame.f_back
        return _NO_FRAME, HIDDEN
