"""Whatever happens in the process on the device is an answer, and the caller goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gpumem
from gpumem.errors import InputError, ValidationError
from gpumem.validation import Session, Validation, weightless
from gpumem.validation.session import DEFAULT_TIMEOUT_S
from tests.validation import small
from tests.validation.conftest import CARD


@pytest.mark.parametrize(
    ("effect", "outcome", "says"),
    [
        (small.abort, "crashed", "ended by SIGABRT; it said last:\nabout to abort"),
        (small.segfault, "crashed", "ended by SIGSEGV"),
        (small.fail, "failed", "ValueError: only on the device"),
        (small.break_device, "failed", "device-side assert triggered"),
        (small.fill, "out of memory", "CUDA out of memory. Tried to allocate"),
    ],
)
def test_each_end_is_named_and_the_next_run_is_fine(
    session: Session, effect: Callable[[Any], Any], outcome: str, says: str
) -> None:
    answer = session.validate(small.Mlp(effect), (64,), batch=8, mode="infer")
    assert (answer.measured.outcome, answer.ran, answer.confirmed) == (outcome, False, False)
    assert says in answer.measured.message
    assert answer.measured.ended_in == "step 1, forward"
    assert (answer.out_of_memory != "") == (outcome == "out of memory")
    assert f"Not confirmed: {outcome} in step 1, forward" in str(answer)
    assert answer.verdict == ("outside" if outcome == "out of memory" else "not measured")
    assert gpumem.Validation.from_json(answer.to_json()) == answer
    after = session.validate(small.Mlp(), (64,), batch=8, mode="infer")
    assert after.verdict == "equal", str(after)


def test_a_hang_is_ended(session: Session) -> None:
    assert session.validate(small.Mlp(), (64,), batch=8, mode="infer").confirmed
    session.timeout = 3
    started = time.monotonic()
    try:
        answer = session.validate(small.Mlp(small.spin), (64,), batch=8, mode="infer")
    finally:
        session.timeout = DEFAULT_TIMEOUT_S
    assert 3 <= time.monotonic() - started < 20
    assert (answer.measured.outcome, answer.measured.ended_in) == ("timed out", "step 1, forward")
    assert answer.measured.message == "no answer within 3 s"


def test_nothing_is_left_behind(virtual_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with Session(CARD) as session:
        assert not session.validate(small.Mlp(small.leave), (64,), batch=8, mode="infer").ran
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_two_at_once(virtual_gpu: None) -> None:
    answers: dict[int, Validation] = {}

    def validate(batch: int) -> None:
        answers[batch] = gpumem.validate(small.Mlp(), (64,), batch=batch, on=CARD, mode="infer")

    threads = [threading.Thread(target=validate, args=(batch,)) for batch in (8, 4096)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answers[batch].verdict == "equal" for batch in (8, 4096))
    assert answers[8].measured.requested_peak_bytes < answers[4096].measured.requested_peak_bytes


def test_what_cannot_be_sent_is_named_with_the_way_out(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weightless, "takes_definitions_along", lambda: False)

    class Local(small.Mlp):
        pass

    with pytest.raises(InputError, match=r"Local cannot be sent to the process .*(local|not found)") as caught:
        session.validate(Local(), (64,), batch=8)
    assert "'package.module:factory'" in caught.value.hint
    with pytest.raises(InputError, match="Mlp cannot be sent"):
        session.validate(small.Mlp(), (64,), batch=8, optimizer=lambda parameters: small.own_optimizer(parameters))


def test_cloudpickle_takes_definitions_along(session: Session) -> None:
    pytest.importorskip("cloudpickle", reason="what is tested is that cloudpickle is used where it is installed")
    model = small.local()[0]
    answer = session.validate(model, (64,), batch=8, optimizer=lambda parameters: small.own_optimizer(parameters))
    assert answer.verdict == "equal", str(answer)


def test_a_factory_is_called_in_the_process(session: Session) -> None:
    answer = session.validate("tests.validation.small:local", batch=8)
    assert answer.verdict == "equal", str(answer)
    assert answer.model == "tests.validation.small:local"
    answer = session.validate("torchvision:squeezenet1_1", "3,64,64", batch=2, optimizer="adam")
    assert answer.verdict == "equal", str(answer)


def test_weights_stay_here(session: Session) -> None:
    # 10 GB of weights that nobody has written.
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1 << 16, 1 << 15, bias=False), nn.Linear(1 << 15, 1 << 14))
    answer = session.validate(model, (1 << 16,), batch=2, mode="infer")
    assert answer.verdict == "equal", str(answer)
    assert answer.measured.requested_peak_bytes > 10 << 30


_SCRIPT = """
import os, sys, torch, gpumem
from torch import nn
# As where it is not installed: with it, definitions travel along and the program is not loaded.
sys.modules["cloudpickle"] = None
class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        return self.layer(x)
def main():
    answer = gpumem.validate(Own(), (64,), batch=8, on="virtual:t4", mode="infer")
    print(answer.verdict, answer.measured.message)
"""


def _script(folder: Path, end: str) -> subprocess.CompletedProcess[str]:
    file = folder / "own.py"
    file.write_text(_SCRIPT + end)
    return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=120)


def test_a_model_of_the_program_itself(virtual_gpu: None, tmp_path: Path) -> None:
    done = _script(tmp_path, "if __name__ == '__main__':\n    main()\n")
    assert done.stdout.split() == ["equal"], done.stderr


def test_a_program_without_a_guard_is_told(virtual_gpu: None, tmp_path: Path) -> None:
    done = _script(tmp_path, "main()\n")
    assert done.stdout.startswith("not measured ")
    assert 'call it under `if __name__ == "__main__":`' in done.stdout


def test_the_process_ends_with_its_caller(virtual_gpu: None) -> None:
    text = (
        "import os, signal\nfrom gpumem.validation import Session\n"
        f"session = Session('{CARD}')\nprint(session._started(None)._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    pid, until = int(done.stdout), time.monotonic() + 20
    while _is_running(pid):
        assert time.monotonic() < until
        time.sleep(0.1)


def _is_running(pid: int) -> bool:
    try:
        # An ended process without a parent is nobody's business in a container without an init.
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_no_device_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValidationError, match="there is no device cuda:0") as caught:
        gpumem.validate(small.Mlp(), (64,), batch=2, on="cuda:0")
    assert "virtual:rtx3090" in caught.value.hint
