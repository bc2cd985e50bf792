"""`import gpumem`, the CLI's help and everything that needs no model leave torch unloaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

_REPORT_TORCH = "import sys; print('torch' in sys.modules)"


def _loads_torch(code: str) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{_REPORT_TORCH}"], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    "code",
    [
        "import gpumem",
        "import gpumem.sources",
        "import gpumem.cli.commands",
        "import gpumem; gpumem.gpus()",
        "from gpumem.cli import main; main(['--help'])",
        "from gpumem.cli import main; main(['gpus'])",
        "from gpumem.cli import main; assert main(['max-batch', 'timm:resnet50', '--budget', '24 gigs']) == 2",
        "from gpumem.cli import main; assert main(['max-batch', 'timm:resnet50', '--gpu', 'rtx3091']) == 2",
    ],
)
def test_torch_stays_unloaded(code: str) -> None:
    assert not _loads_torch(code)


def test_the_check_sees_torch_when_it_is_loaded() -> None:
    assert _loads_torch("import gpumem.extraction")
