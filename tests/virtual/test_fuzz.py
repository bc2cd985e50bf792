"""Odd arguments for every entry point of the virtual device: an error code, never a crash.

`GPUMEM_FUZZ_ROUNDS=300 GPUMEM_FUZZ_SEED=7 pytest tests/virtual/test_fuzz.py` looks longer and elsewhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpumem.virtual.elf import dynamic_symbols
from gpumem.virtual.environment import Device, environment
from gpumem.virtual.installed import LIBRARY
from tests.virtual.entry_signatures import signatures

ROUNDS = int(os.environ.get("GPUMEM_FUZZ_ROUNDS", "3"))
SEED = int(os.environ.get("GPUMEM_FUZZ_SEED", "0"))
SECONDS = 60 + 10 * ROUNDS
"""A call that does not end is a failure like a crash; CI's machines need a hundredth of this."""

# Ends the thread that calls it.
LEFT_OUT = {"pthread_exit"}


def _cudnn() -> str:
    """The installed cuDNN, which answers part of the calls."""
    found = importlib.util.find_spec("nvidia.cudnn")
    assert found is not None
    assert found.submodule_search_locations is not None
    return str(Path(found.submodule_search_locations[0]) / "lib" / "libcudnn.so.9")


def test_every_entry_point_has_a_signature() -> None:
    provided = {name for name in dynamic_symbols(LIBRARY).provided if not name.startswith(("gpumem_", "_", "rust"))}
    assert provided - LEFT_OUT == {name for name in signatures() if not name.startswith("_")}
    assert len(provided) > 700


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("cudnn", ["stub", "real"])
def test_odd_arguments_are_errors_and_never_crashes(programs: Path, tmp_path: Path, threads: int, cudnn: str) -> None:
    file = tmp_path / "signatures.json"
    file.write_text(json.dumps(signatures()))
    words = [str(file), str(SEED), str(ROUNDS), str(threads), _cudnn() if cudnn == "real" else ""]
    with environment(Device(gpu="t4", count=2, cudnn=cudnn), os.environ) as variables:
        done = subprocess.run(
            [sys.executable, str(programs / "odd_arguments.py"), *words],
            env=variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    last = [log.read_text().splitlines()[-1:] for log in tmp_path.glob("signatures.json.*")]
    assert done.returncode == 0, f"{done.stderr[-2000:]} after {last}"
    assert int(done.stdout) == len(signatures()) * ROUNDS * threads
