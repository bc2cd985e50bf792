"""A spec travels to machines without torch: profiles, the CLI's list and every question to a spec work there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpumem.api import extract
from tests.extract import models

_BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "numpy"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Blocker())
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _BLOCK + code], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_blocker_blocks() -> None:
    assert "No module named 'torch'" in _run("import torch").stderr


def test_a_spec_answers_without_torch(tmp_path: Path) -> None:
    spec = extract(models.mlp(), (8,))
    file = tmp_path / "spec.json"
    file.write_text(spec.to_json())
    done = _run(
        "import pickle\n"
        "import gpumem\n"
        f"spec = gpumem.ModelSpec.from_json(open({str(file)!r}).read())\n"
        "assert pickle.loads(pickle.dumps(spec)) == spec\n"
        "print(spec.estimate(64, gpu='t4').to_json())\n"
        "print(spec.max_batch(budget='2GiB', context='300MiB'), spec.fits(64, gpu='t4'))\n"
    )
    assert done.stderr == ""
    report, numbers = done.stdout.splitlines()
    assert report == spec.estimate(64, gpu="t4").to_json()
    assert numbers == f"{spec.max_batch(budget='2GiB', context='300MiB')} True"


@pytest.mark.parametrize(
    "code",
    ["import gpumem; assert gpumem.gpus()", "from gpumem.cli import main; assert main(['gpus']) == 0"],
)
def test_profiles_need_no_torch(code: str) -> None:
    done = _run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_extraction_says_what_is_missing() -> None:
    done = _run("import gpumem\ngpumem.estimate(None, (8,), batch=4)")
    assert "No module named 'torch'" in done.stderr
