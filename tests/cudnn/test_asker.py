"""The process that holds cuDNN may crash, hang, be missing or too old: the caller gets an answer or a clear error."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gpumem
from gpumem.cudnn import asker, installed, library, process
from gpumem.cudnn.asker import Asker
from gpumem.cudnn.installed import InstalledCudnn
from gpumem.errors import CudnnError, UnknownNameError
from gpumem.virtual.installed import InstalledTorch

_FAKE = Path(__file__).with_name("fake_child.py")
_ANSWERS, _ENDS, _HANGS, _HAS_NO_PLAN, _IS_REFUSED, _IS_TOO_OLD = range(1, 7)


def _call(groups: int, batch: int = 2) -> list[int]:
    return [0, 0, 1, 0, 0, groups, 2, batch, 60, 60, 9, 9, 3, 3, 1, 1, 1, 1, 1, 1]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An asker whose process is `fake_child.py`."""
    monkeypatch.setattr(process, "_CHILD", _FAKE)
    made = Asker(InstalledCudnn(Path("cudnn"), Path("device"), None))
    yield made
    made.close()


def test_answers_are_kept(fake: Asker) -> None:
    assert fake.workspaces("t4", [_call(_ANSWERS), _call(_HAS_NO_PLAN), _call(_IS_REFUSED)]) == [512, None, None]
    assert fake.name() == "cuDNN 9.8.1"
    fake.close()
    assert fake.workspaces("t4", [_call(_HAS_NO_PLAN), _call(_ANSWERS)]) == [None, 512]
    assert fake._process is None


def test_a_call_that_kills_the_process_has_no_answer_and_the_others_do(fake: Asker) -> None:
    calls = [_call(_ANSWERS), _call(_ENDS), _call(_ANSWERS, 3)]
    assert fake.workspaces("t4", calls) == [512, None, 512]


def test_after_three_crashes_it_is_not_asked_again(fake: Asker) -> None:
    with pytest.raises(CudnnError, match="crashed 3 times"):
        fake.workspaces("t4", [_call(_ENDS, batch) for batch in range(2, 8)])
    with pytest.raises(CudnnError, match="crashed 3 times"):
        fake.workspaces("t4", [_call(_ANSWERS, 9)])


def test_a_process_that_ended_while_idle_is_started_again(fake: Asker) -> None:
    fake.workspaces("t4", [_call(_ANSWERS)])
    assert fake._process is not None
    fake._process._process.kill()
    assert fake.workspaces("t4", [_call(_ANSWERS, 3)]) == [512]
    assert fake._crashes == 0


def test_a_hang_is_a_call_without_answer(fake: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CALL_SECONDS", 0.5)
    fake.workspaces("t4", [_call(_ANSWERS)])
    assert fake.workspaces("t4", [_call(_HANGS), _call(_ANSWERS, 3)]) == [None, 512]


def test_an_old_cudnn_says_so_once(fake: Asker) -> None:
    for _ in range(2):
        with pytest.raises(CudnnError, match=r"9\.8 and later do"):
            fake.workspaces("t4", [_call(_IS_TOO_OLD)])


def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    made = Asker(InstalledCudnn(tmp_path / "libcudnn.so.9", tmp_path / "device.so", None))
    with pytest.raises(CudnnError, match="cannot be loaded"):
        made.workspaces("t4", [_call(_ANSWERS)])


def test_threads_share_one_process(fake: Asker) -> None:
    found: list[list[int | None]] = []

    def ask(batch: int) -> None:
        found.append(fake.workspaces("t4", [_call(_ANSWERS, batch), _call(_HAS_NO_PLAN, batch)]))

    threads = [threading.Thread(target=ask, args=(batch,)) for batch in range(2, 12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[512, None]] * 10


def test_a_forked_process_starts_its_own(fake: Asker) -> None:
    fake.workspaces("t4", [_call(_ANSWERS)])
    child = os.fork()
    if not child:
        answered = fake.workspaces("t4", [_call(_ANSWERS, 5)]) == [512]
        fake.close()
        os._exit(0 if answered else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fake.workspaces("t4", [_call(_ANSWERS, 7)]) == [512]


_TORCH = InstalledTorch("2.14.1+cu130", (13, 0), Path("torch"))


@pytest.mark.parametrize(
    ("torch", "stack", "said"),
    [
        (_TORCH, None, None),
        (_TORCH, ((2, 14), None), None),
        (_TORCH, ((2, 14), (13, 0)), None),
        (_TORCH, ((2, 14), (12, 6)), r"that of PyTorch 2.14.1\+cu130, and the target has another"),
        (_TORCH, ((1, 12), None), "the target has another"),
        (None, None, None),
        (None, ((2, 14), None), "it is not known"),
    ],
)
def test_it_answers_for_the_pytorch_it_came_with(torch: Any, stack: Any, said: str | None) -> None:
    found = InstalledCudnn(Path("cudnn"), Path("device"), torch)
    if said is None:
        found.check_stack(stack)
    else:
        with pytest.raises(CudnnError, match=said):
            found.check_stack(stack)


def test_who_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library("rules", None) == (None, False, "")
    with pytest.raises(UnknownNameError, match="conv_workspaces must be 'auto', 'cudnn', 'rules', not 'never'"):
        library("never", None)
    missing = CudnnError("cuDNN 9 is not installed", "hint")
    monkeypatch.setattr(installed, "_found", lambda: missing)
    assert library("auto", None) == (None, False, "cuDNN 9 is not installed")
    with pytest.raises(CudnnError, match="cuDNN 9 is not installed"):
        library("cudnn", None)
    monkeypatch.setattr(installed, "_found", lambda: InstalledCudnn(Path("c"), Path("d"), _TORCH))
    whom, required, because = library("cudnn", ((2, 14), None))
    assert (required, because) == (True, "")
    assert isinstance(whom, Asker)
    assert library("auto", ((2, 4), None))[0] is None


@pytest.fixture(scope="module")
def spec() -> gpumem.ModelSpec:
    import torch

    return gpumem.extract(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)), (3, 32, 32))


def test_an_interrupt_goes_through_the_core(spec: gpumem.ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Asker, "workspaces", interrupted)
    monkeypatch.setattr(installed, "_found", lambda: InstalledCudnn(Path("c"), Path("d"), None))
    with pytest.raises(KeyboardInterrupt):
        spec.estimate(4, gpu="t4")


def test_a_cudnn_that_does_not_start_is_an_error_or_a_reason(
    spec: gpumem.ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "_found", lambda: InstalledCudnn(Path("c"), Path("d"), None))
    asker.asker_of.cache_clear()
    report = spec.estimate(4, gpu="t4")
    (said,) = [line for line in report.assumptions if line.startswith("convolution workspaces")]
    assert "rules fitted to cuDNN's answers, with a range (the installed cuDNN cannot be loaded" in said
    assert report.requested_peak == spec.estimate(4, gpu="t4", conv_workspaces="rules").requested_peak
    with pytest.raises(CudnnError, match="cannot be loaded") as caught:
        spec.max_batch(gpu="t4", conv_workspaces="cudnn")
    assert "conv_workspaces" in pickle.loads(pickle.dumps(caught.value)).hint
    asker.asker_of.cache_clear()


@pytest.mark.parametrize("wheel", ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.13"])
def test_nvrtc_is_loaded_before_it(wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "nvidia/cudnn/lib/libcudnn.so.9", tmp_path / wheel, (tmp_path / wheel).with_suffix(".12")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    torch = InstalledTorch("2.14.1+cu130", (13, 0), tmp_path / "torch")
    monkeypatch.setattr("gpumem.virtual.installed.torch", lambda: torch)
    monkeypatch.setattr("gpumem.virtual.installed.library", lambda: tmp_path / "device.so")
    found = installed._found.__wrapped__()
    assert isinstance(found, InstalledCudnn)
    assert (found.library, found.before, found.torch) == (files[0], (files[1],), torch)


@pytest.mark.usefixtures("virtual_gpu")
def test_the_real_one_answers_without_torch_or_cuda_in_this_process(spec: gpumem.ModelSpec, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(spec.to_json())
    code = """
import sys
from pathlib import Path
import gpumem
spec = gpumem.ModelSpec.from_json(Path(sys.argv[1]).read_text())
report = spec.estimate(8, gpu="a100-80gb", context=0, conv_workspaces="cudnn")
assert report.requested_peak.low == report.requested_peak.high
loaded = Path("/proc/self/maps").read_text()
assert "torch" not in sys.modules and "libcudnn" not in loaded and "libcuda.so" not in loaded
print([line for line in report.assumptions if "convolution" in line])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "spec.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "own answers for a100-80gb" in done.stdout
