"""Runs the tests of what traces and checkpoints models in old versions of PyTorch, each in its own environment.

    python tools/check_versions.py [--environments DIR] [torch version ...]

Environments are made once (2 to 3 GB each) and kept; the package is built as a wheel and installed into each anew.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The oldest supported torch, and one in between, each with the torchvision and numpy of its time.
VERSIONS = {
    "2.4.1": ("torchvision==0.19.1", "numpy<2"),
    "2.8.0": ("torchvision==0.23.0", "numpy>=2"),
}
TESTS = ("tests/extract", "tests/checkpointing", "tests/planning")
TOOLS = ("pytest==9.2.0", "pytest-timeout==2.4.0")


def _run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def environment(directory: Path, version: str, packages: tuple[str, ...]) -> Path:
    """The interpreter of the environment with this torch and these packages, made if it is missing."""
    place = directory / f"torch-{version}"
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    complete = place / "complete"
    if not complete.exists():
        venv.create(place, with_pip=True, clear=True)
        _run(python, "-m", "pip", "install", "--quiet", f"torch=={version}", *packages)
        complete.touch()
    return python


def main() -> int:
    """Test each version; the exit status is that of the last one that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=list(VERSIONS), help=f"of {', '.join(VERSIONS)}")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venvs", help="where they are kept")
    arguments = parser.parse_args()
    unknown = set(arguments.versions) - set(VERSIONS)
    if unknown:
        parser.error(f"unknown versions: {', '.join(sorted(unknown))}")
    status = 0
    with tempfile.TemporaryDirectory() as wheels:
        _run("maturin", "build", "--release", "--locked", "--out", wheels)
        (wheel,) = Path(wheels).glob("*.whl")
        for version in arguments.versions:
            python = environment(arguments.environments, version, (*VERSIONS[version], *TOOLS))
            _run(python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel)
            _run(python, "-m", "pip", "install", "--quiet", wheel)
            print(f"torch {version}", flush=True)
            tests = subprocess.run([python, "-m", "pytest", "-q", *TESTS], cwd=ROOT, check=False)
            status = tests.returncode or status
    return status


if __name__ == "__main__":
    sys.exit(main())
