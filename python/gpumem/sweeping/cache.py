"""Traces kept on disk by their content; safe for many writers, and never the cause of a wrong or failing sweep."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

from gpumem.errors import InputError, SpecError
from gpumem.sweeping.identity import NoIdentityError, identity
from gpumem.sweeping.job import Job, Traced

_LEVEL = 1


def default_folder() -> Path:
    """Where caches belong on this system: `$XDG_CACHE_HOME/gpumem`, `~/Library/Caches/gpumem` or `%LOCALAPPDATA%`."""
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "gpumem" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "gpumem"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "gpumem"


class Cache:
    """Traces in a folder.

    Args:
        folder: Made when the first trace is kept; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def at(cls, place: str | Path | bool | None) -> Cache:
        """The cache that a user means: True the system's folder, None or False none, else a folder.

        Raises:
            InputError: the place is no folder.
        """
        if place is None or place is False:
            return cls(None)
        if place is not True and not isinstance(place, (str, os.PathLike)):
            raise InputError(f"cache must be a folder, True or None, not {type(place).__name__}")
        folder = default_folder() if place is True else Path(place)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"the cache {str(folder)!r} is no folder", "give a folder, or cache=None")
        return cls(folder)

    def find(self, job: Job) -> Traced | None:
        """The kept trace of this content, if there is one that can be read.

        Warns:
            UserWarning: the entry is damaged; it will be written again.
        """
        path = self._path(job)
        if path is None or not path.is_file():
            return None
        try:
            own, _, rest = gzip.decompress(path.read_bytes()).decode().partition("\n")
            return Traced.from_json(rest if own == identity(job) else "")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, SpecError) as error:
            warnings.warn(f"the kept trace {path} is damaged and will be replaced: {error}", stacklevel=2)
            return None

    def keep(self, job: Job, traced: Traced) -> None:
        """Keep a trace; errors are not kept, since their cause may lie outside of what is known of the job.

        Warns:
            UserWarning: it cannot be written; the sweep goes on without.
        """
        path = self._path(job)
        if path is None or traced.error is not None:
            return
        data = gzip.compress(f"{identity(job)}\n{traced.to_json()}".encode(), _LEVEL, mtime=0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Another process may write the same: whoever comes last replaces a whole file by a whole file.
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                Path(name).replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            warnings.warn(f"traces are not kept in {self.folder}: {error}", stacklevel=2)
            self.folder = None

    def _path(self, job: Job) -> Path | None:
        if self.folder is None:
            return None
        try:
            key = hashlib.sha256(identity(job).encode()).hexdigest()
        except NoIdentityError:
            return None
        return self.folder / "traces" / key[:2] / f"{key}.gz"
