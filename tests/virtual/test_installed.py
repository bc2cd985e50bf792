from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path

import pytest

from gpumem.errors import VirtualDeviceError
from gpumem.virtual import installed, symbols
from gpumem.virtual.elf import DynamicSymbols, dynamic_symbols
from gpumem.virtual.environment import Device, environment


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "riscv64")])
def test_other_platforms_are_refused(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(VirtualDeviceError, match=f"not for {system} on {machine}"):
        installed.library()


def _fake_torch(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('not to be imported')")
    (package / "version.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def test_the_installed_torch_is_read_and_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _fake_torch(monkeypatch, tmp_path, "__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\n")
    assert installed.torch() == installed.InstalledTorch("2.8.0+cu128", (12, 8), tmp_path / "torch")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__version__ = '2.8.0+cpu'\ncuda: Optional[str] = None\n", "built without CUDA"),
        ("__version__ = '2.8.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4.4'\n", "for ROCm 6.4.4, not"),
        ("", "does not say which PyTorch"),
    ],
)
@pytest.mark.parametrize("any_version", [False, True])
def test_other_builds_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str, any_version: bool
) -> None:
    _fake_torch(monkeypatch, tmp_path, text)
    with pytest.raises(VirtualDeviceError, match=message):
        installed.torch(any_version=any_version)


@pytest.mark.parametrize(
    ("version", "cuda", "message"),
    [
        ("1.13.1+cu117", "11.7", "older than 2.4"),
        ("2.3.1+cu121", "12.1", "older than 2.4"),
        ("2.16.0.dev20270101+cu130", "13.0", "newer than 2.15"),
        ("3.0.0", "13.0", "newer than 2.15"),
        ("2.7.1+cu118", "11.8", "CUDA 11.8; the virtual GPU stands in for the libraries of CUDA 12 and 13"),
    ],
)
def test_other_versions_are_refused_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, cuda: str, message: str
) -> None:
    _fake_torch(monkeypatch, tmp_path, f"__version__ = '{version}'\ncuda: Optional[str] = '{cuda}'\n")
    with pytest.raises(VirtualDeviceError, match=message) as caught:
        installed.torch()
    assert "GPUMEM_ANY_TORCH=1" in caught.value.hint
    assert installed.torch(any_version=True).version == version
    monkeypatch.setenv(installed.ANY_TORCH, "1")
    assert installed.torch().version == version


def test_without_pytorch_there_is_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(VirtualDeviceError, match="PyTorch is not installed"):
        installed.torch()


def test_the_installed_torch_needs_nothing_that_is_missing(programs: Path) -> None:
    libraries = symbols.libraries_of(installed.torch().folder)
    assert any("cudaMalloc" in dynamic_symbols(library).needed for library in libraries)
    assert symbols.missing(libraries) == {}


def test_a_missing_entry_point_is_named(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "_left_to_real", lambda device: set())
    found = symbols.missing(symbols.libraries_of(installed.torch().folder))
    assert "libtorch_cuda.so" in found["cudnnGetErrorString"]
    assert "cudaMalloc" not in found


def test_driver_functions_that_the_allocator_looks_up_are_seen(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "dynamic_symbols", lambda file: DynamicSymbols(frozenset(), frozenset()))
    found = symbols.missing(symbols.libraries_of(installed.torch().folder))
    assert found["cuMemCreate"] == found["nvmlInit_v2"] == ["libc10_cuda.so"]


def test_other_files_are_not_read_as_libraries(tmp_path: Path) -> None:
    file = tmp_path / "x.so"
    file.write_bytes(b"\x7fELF\x01\x01" + bytes(100))
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF file"):
        dynamic_symbols(file)


def test_the_environment_is_the_devices_and_is_cleaned_up(programs: Path) -> None:
    device = Device(gpu="t4", count=2, total_bytes=5, context_bytes=0, addresses="random7")
    base = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "LD_PRELOAD": "x.so", "GPUMEM_VGPU_TRACE": "2"}
    with environment(device, base) as variables:
        library = variables["LD_PRELOAD"].removesuffix(":x.so")
        assert Path(library).resolve() == installed.LIBRARY
        assert Path(variables["LD_LIBRARY_PATH"], "libnvidia-ml.so.1").resolve() == installed.LIBRARY
        assert variables["GPUMEM_VGPU_TOTAL_BYTES"] == "5"
        assert (variables["GPUMEM_VGPU_TRACE"], variables["PATH"]) == ("0", "/bin")
        assert "CUDA_VISIBLE_DEVICES" not in variables
    assert not Path(library).exists()


@pytest.mark.parametrize("addresses", ["sideways", "up7", ""])
def test_unknown_address_orders_are_refused(addresses: str) -> None:
    with pytest.raises(VirtualDeviceError, match="address order"):
        Device(gpu="t4", addresses=addresses)
