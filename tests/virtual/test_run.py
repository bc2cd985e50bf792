"""Programs on the virtual GPU, through `gpumem.virtual.run` and the command."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import gpumem
from gpumem import virtual
from gpumem.errors import UnknownNameError, VirtualDeviceError
from gpumem.virtual.environment import Device, environment
from gpumem.virtual.run_report import RunReport


def _script(folder: Path, text: str) -> str:
    file = folder / "program.py"
    file.write_text(text)
    return str(file)


def test_peaks_are_pytorchs_own_and_survive_a_reset(
    programs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report = virtual.run([str(programs / "train.py"), "8", "3"], gpu="rtx3090")
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert said["arguments"] == ["8", "3"]
    assert (said["name"], said["devices"]) == ("NVIDIA GeForce RTX 3090", 1)
    (device,) = report.devices
    assert said["total"] == device.total_bytes
    assert (device.requested_peak_bytes, device.allocated_peak_bytes, device.reserved_peak_bytes) == (
        said["requested"],
        said["allocated"],
        said["reserved"],
    )
    assert device.device_peak_bytes == device.reserved_peak_bytes + device.context_bytes
    assert (report.outcome, report.exit_code, report.optimizer_steps) == ("finished", 0, 3)
    assert report.launches > 50
    # No file of the device is left behind.
    assert list(tmp_path.iterdir()) == []


def test_reads_are_counted_where_the_program_makes_them(programs: Path) -> None:
    report = virtual.run([str(programs / "train.py"), "8", "3"], gpu="rtx3090")
    line = (programs / "train.py").read_text().splitlines().index("    if loss.item() > 0:") + 1
    (read,) = [read for read in report.host_reads if f"train.py:{line} " in read.site]
    assert (read.use, read.reads, read.scalars, read.read_bytes) == ("branch", 3, 3, 12)


def test_out_of_memory_is_pytorchs_exception_at_the_budget(tmp_path: Path, programs: Path) -> None:
    text = """
import torch
free, total = torch.cuda.mem_get_info()
assert (free, total) == (900 << 20, 1000 << 20), (free, total)
held = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda") for _ in range(9)]
try:
    torch.empty(2 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("full")
torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
"""
    report = virtual.run([_script(tmp_path, text)], gpu="t4", budget_bytes=1000 << 20, context_bytes=100 << 20)
    assert (report.outcome, report.exit_code) == ("out of memory", 1)
    assert report.message.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB")
    assert report.devices[0].device_peak_bytes == 1000 << 20
    assert report.devices[0].out_of_memory == 2
    line = text.splitlines().index(next(line for line in text.splitlines() if line.startswith("held = "))) + 1
    (held,) = report.held
    assert f"program.py:{line} " in held.site
    assert (held.held_bytes, held.blocks) == (900 << 20, 9)


def test_a_failure_shows_the_programs_own_traceback(
    tmp_path: Path, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = virtual.run([_script(tmp_path, "def f():\n    raise ValueError('no')\nf()")], gpu="t4")
    assert (report.outcome, report.exit_code, report.message) == ("failed", 1, "ValueError: no")
    shown = capfd.readouterr().err
    assert 'program.py", line 3' in shown
    assert "gpumem" not in shown
    assert report.devices == ()


@pytest.mark.parametrize(("text", "code"), [("raise SystemExit(3)", 3), ("raise SystemExit('x')", 1), ("exit()", 0)])
def test_exit_codes_are_the_programs(tmp_path: Path, programs: Path, text: str, code: int) -> None:
    assert virtual.run([_script(tmp_path, text)], gpu="t4").exit_code == code


def test_threads_and_exit_functions_come_to_their_end(tmp_path: Path, programs: Path) -> None:
    text = """
import atexit, threading, time, torch
x = torch.randn(64, device="cuda", requires_grad=True)
atexit.register(print, "left")
threading.Thread(target=lambda: (time.sleep(0.1), print("joined"))).start()
(x * x).sum().backward()
"""
    command = [sys.executable, "-m", "gpumem", "run", "--gpu", "t4", _script(tmp_path, text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["joined", "left"]), done.stderr


def test_a_python_that_the_program_starts_does_not_abort_at_its_end(programs: Path) -> None:
    with environment(Device(gpu="t4"), os.environ) as variables:
        done = subprocess.run(
            [sys.executable, str(programs / "late_thread.py")],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_ctrl_c_is_the_programs_and_leaves_nothing_behind(tmp_path: Path, programs: Path) -> None:
    text = """
import sys, time, torch
torch.ones(1, device="cuda")
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(7)
"""
    command = [sys.executable, "-m", "gpumem", "run", "--gpu", "t4", _script(tmp_path, text)]
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        os.killpg(running.pid, signal.SIGINT)
    assert running.returncode == 7
    assert not list(tmp_path.glob("gpumem-*"))


def test_a_program_that_is_killed_is_reported(tmp_path: Path, programs: Path) -> None:
    text = """
import os, signal, torch
x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
os.kill(os.getpid(), signal.SIGKILL)
"""
    report = virtual.run([_script(tmp_path, text)], gpu="t4")
    assert (report.outcome, report.exit_code) == ("died", -signal.SIGKILL)
    (process,) = report.processes
    assert process.device_peak_bytes == (64 << 20) + process.context_bytes


def test_a_stray_access_says_what_happened(tmp_path: Path, programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "import ctypes, torch\nctypes.memset(torch.ones(1, device='cuda').data_ptr(), 0, 1)"
    assert virtual.run([_script(tmp_path, text)], gpu="t4").exit_code == -signal.SIGSEGV
    assert "touched memory of the virtual GPU from the host" in capfd.readouterr().err


FEATURES = {
    "lstm": (4, 20, 256),
    "gru_amp": (20, 4, 128),
    "packed_lstm_with_projection": (8, 4),
    "linear_algebra": (16, 16),
    "fourier": (32, 9, 9),
    "compiled_at_run_time": ((4, 5), (3,)),
    "sparse": (4, 2),
    "graph": True,
    "devices": ("cuda:0", 4 << 20, 4 << 20),
    "device_properties": (8, 0, 108, 40 << 20),
    "nvml": (2, 2),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_run(programs: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    report = virtual.run([str(programs / "features.py"), name], gpu="a100-80gb", gpus=2)
    assert report.outcome == "finished", report.message
    assert ast.literal_eval(capfd.readouterr().out.splitlines()[-1]) == FEATURES[name]


def test_two_processes_train_together(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = virtual.run([str(programs / "data_parallel.py")], gpu="a100", gpus=2)
    assert report.outcome == "finished", report.message
    said = [line.split(": ") for line in sorted(capfd.readouterr().out.splitlines()) if line.startswith("rank")]
    assert [who for who, _ in said] == ["rank 0 of 2", "rank 1 of 2"]
    took = {use.device: use.device_peak_bytes - use.context_bytes for use in report.processes}
    assert took == {rank: int(reserved) for rank, (_, reserved) in enumerate(said)}
    # Parameters, gradients and buckets, each 2 x 512 x 512 floats, and a cuBLAS workspace for each thread.
    assert took[0] > 3 * 2 * 512 * 512 * 4 + 2 * 8519680


def test_tensors_can_be_handed_to_another_process(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = virtual.run([str(programs / "shared.py")], gpu="a100", context_bytes=512 << 20)
    assert report.outcome == "finished", report.message
    given, received, code = (ast.literal_eval(line) for line in capfd.readouterr().out.splitlines()[-3:])
    # The memory is the sender's alone, however many see it.
    assert given == ("cuda:0", 64 << 20, 16 << 20, 32 << 20)
    assert received == (32 << 20, 64 << 20, (2 * 512 + 64 + 32) << 20)
    assert code == 0


def test_guessed_sizes_are_named(programs: Path) -> None:
    report = virtual.run([str(programs / "features.py"), "lstm"], gpu="a100")
    assert "cudnnGetRNNTempSpaceSizes" in report.guessed_sizes


def test_the_command_passes_arguments_and_writes_the_report(programs: Path, tmp_path: Path) -> None:
    file, snapshot = tmp_path / "report.json", tmp_path / "snapshot.pickle"
    command = ["run", "--gpu", "rtx3090", "--budget", "2GB", "--report", str(file), "--snapshot", str(snapshot)]
    program = [str(programs / "train.py"), "4", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "gpumem", *command, *program], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["total"] == 2 * 10**9
    assert "peak reserved" in done.stderr
    report = RunReport.from_json(file.read_text())
    assert report.devices[0].total_bytes == 2 * 10**9
    assert snapshot.stat().st_size > 1000


def test_a_module_can_be_run(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert virtual.run(["-m", "json.tool", "--help"], gpu="t4").exit_code == 0
    assert "usage" in capfd.readouterr().out


def test_what_cannot_be_run_is_said_before_anything_starts(programs: Path) -> None:
    with pytest.raises(VirtualDeviceError, match=r"no program 'missing\.py'"):
        virtual.run(["missing.py"], gpu="t4")
    with pytest.raises(UnknownNameError):
        virtual.run([str(programs / "train.py")], gpu="gaudi")
    with pytest.raises(VirtualDeviceError, match="17 devices"):
        virtual.run([str(programs / "train.py")], gpu="t4", gpus=17)
    with pytest.raises(gpumem.GpumemError):
        virtual.run([], gpu="t4")
