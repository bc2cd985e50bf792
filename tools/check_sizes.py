"""Fail when a source file has outgrown one job: more than 450 lines."""

from __future__ import annotations

import sys
from pathlib import Path

CEILING_LINES = 450
FOLDERS = ("rust", "python", "tests", "tools", "benchmarks")
SUFFIXES = (".rs", ".py", ".pyi")


def source_files(root: Path) -> list[Path]:
    """Every source file of the project below `root`."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)


def too_long(root: Path) -> list[str]:
    """One line per file over the ceiling, largest first."""
    counted = [(len(path.read_text(encoding="utf-8").splitlines()), path) for path in source_files(root)]
    over = sorted(((lines, path) for lines, path in counted if lines > CEILING_LINES), reverse=True)
    return [f"{path.relative_to(root)}: {lines} lines (at most {CEILING_LINES})" for lines, path in over]


def main() -> int:
    """Check the repository this file stands in."""
    root = Path(__file__).resolve().parent.parent
    if not source_files(root):
        print("check_sizes: found no source file", file=sys.stderr)
        return 1
    problems = too_long(root)
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
