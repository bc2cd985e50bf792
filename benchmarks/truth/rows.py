"""Where the measured rows are, and how they are read."""

from __future__ import annotations

import csv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# Facts collected by others, kept beside the repository; each row names its source.
SHARED_TRUTH = REPOSITORY.parent / "shared" / "truth"

Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file with a header; lines before it that start with `#` name its source.

    Raises:
        FileNotFoundError: the file is not there; the message says where the data belongs.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: the measured tables belong into {SHARED_TRUTH}")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))
