"""A child process on gpumem's virtual GPU that runs cases with unmodified CUDA PyTorch.

`run(case)` answers from `target/parity-cache` when the same case ran before with the same sources and versions.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import importlib.metadata
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpumem.errors import VirtualDeviceError
from gpumem.virtual import installed
from gpumem.virtual.environment import Device, environment
from tests.parity.case import Case
from tests.parity.counting import counting
from tests.parity.timeline import Timeline

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "target" / "parity-cache"
CASE_SECONDS = 120.0
START_SECONDS = 120.0
DEVICE_BYTES = 200_000 * 2**20
# The sources that decide what the child runs; they are part of the cache key.
_DECIDING = (
    "python/gpumem/loop.py",
    "python/gpumem/extraction/inputs.py",
    "python/gpumem/extraction/criterion.py",
    "python/gpumem/extraction/optimizer.py",
    "tests/parity/virtual_child.py",
)
# The virtual GPU's sources; they are part of the key as they stand.
_DEVICE = ("rust/gpumem-vgpu/src", "rust/gpumem-vgpu/data", "rust/gpumem-core/data/gpus.json")


class ChildError(RuntimeError):
    """The case failed on the virtual GPU, or its child process died."""


class LateError(ChildError):
    """The child did not answer in time; says nothing about the case, so it is not stored."""


@dataclasses.dataclass(frozen=True)
class Truth:
    """What unmodified PyTorch did.

    Attributes:
        timeline: Events and phase borders; labels are C++ and Python frames when stacks were asked for.
        requested_peak_bytes: `requested_bytes.all.peak`.
        allocated_peak_bytes: `allocated_bytes.all.peak`.
        reserved_peak_bytes: `reserved_bytes.all.peak`.
        retries: Cache flushes after a failed segment allocation.
        criterion: Description of the loss, as gpumem would report it.
        seconds: Time of the run in the child.
    """

    timeline: Timeline
    requested_peak_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    retries: int
    criterion: str
    seconds: float


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


class _Essence(ast.NodeTransformer):
    """Drops docstrings and what is raised: neither changes what a run that succeeds allocates."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise()


def _essence(path: Path) -> str:
    return ast.dump(_Essence().visit(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def _device_sources() -> str:
    files = [file for name in _DEVICE for file in sorted([*(ROOT / name).rglob("*.*"), ROOT / name]) if file.is_file()]
    return _digest(*(file.read_text(encoding="utf-8") for file in files))


_LIBRARIES = {"tv": ("torchvision",), "timm": ("timm",), "hf": ("transformers",), "zoo": ("transformers",)}


@functools.cache
def _versions(model_family: str) -> str:
    """Everything but the case that a result depends on."""
    packages = ["torch", *_LIBRARIES.get(model_family, ())]
    texts = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    texts += [_essence(ROOT / path) for path in _DECIDING]
    from tests.parity.models import source_of_family

    texts.append(source_of_family(model_family))
    texts.append(_device_sources())
    return _digest(*texts)


class _Child:
    def __init__(self, profile: str, workspaces: str, count: int) -> None:
        device = Device(gpu=profile, total_bytes=DEVICE_BYTES, cudnn=workspaces)
        self.device = contextlib.ExitStack()
        variables = self.device.enter_context(environment(device, os.environ)) | {
            "PYTHONPATH": f"{ROOT / 'python'}:{ROOT}",
            "TORCH_SYMBOLIZE_MODE": "dladdr",
        }
        variables.pop("PYTORCH_CUDA_ALLOC_CONF", None)
        if count:
            variables = counting(variables, count, CACHE.parent)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.parity.virtual_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=variables,
            cwd=ROOT,
        )

        try:
            self._line(START_SECONDS)
        except ChildError as error:
            self.stop()
            raise VirtualDeviceError(f"PyTorch does not start on the virtual GPU: {error}") from error

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ChildError(f"child on the virtual GPU has ended: {self._tail()}") from None
        answer: dict[str, Any] = json.loads(self._line(seconds))
        return answer

    def _line(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        if not ready:
            self.stop()
            raise LateError(f"no answer within {seconds:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise ChildError(f"child died with {self.process.returncode}: {self._tail()}")
        return line

    def _tail(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-600:].decode(errors="replace")

    def stop(self) -> None:
        self.process.kill()
        # Waits, and closes the pipes.
        self.process.communicate()
        self.errors.close()
        self.device.close()


_children: dict[tuple[str, str, int], _Child] = {}


@atexit.register
def stop_children() -> None:
    """End the child processes."""
    for child in _children.values():
        child.stop()
    _children.clear()


@functools.cache
def _checkpointing() -> str:
    sources = sorted((ROOT / "python" / "gpumem" / "checkpointing").glob("*.py"))
    return _digest(*(path.read_text() for path in sources))


def run(case: Case, *, stacks: bool = False, seconds: float = CASE_SECONDS, fresh: bool = False) -> Truth:
    """Run the case on the virtual GPU, or take the stored result.

    Args:
        case: What to run.
        stacks: Also record which C++ and Python frames asked for each allocation (not stored).
        seconds: Time limit.
        fresh: Ignore a stored result.

    Raises:
        VirtualDeviceError: when there is no virtual GPU here.
        ChildError: when the case fails there (also stored, unless it was only late).
    """
    versions = _versions(case.model.partition(":")[0]) + (_checkpointing() if case.regions else "")
    stored = CACHE / f"{_digest(case.to_json(), versions)}.json.gz"
    if not stacks and not fresh and stored.exists():
        answer = json.loads(gzip.decompress(stored.read_bytes()))
    else:
        answer = _run_in_child(case, stacks, seconds)
        if not stacks:
            CACHE.mkdir(parents=True, exist_ok=True)
            partial = stored.with_suffix(f".{os.getpid()}")
            partial.write_bytes(gzip.compress(json.dumps(answer).encode(), compresslevel=3))
            partial.replace(stored)
    if "error" in answer:
        raise ChildError(answer["error"])
    timeline = Timeline(answer["events"], [(name, at) for name, at in answer["marks"]], answer["labels"])
    return Truth(
        timeline,
        answer["requested_peak_bytes"],
        answer["allocated_peak_bytes"],
        answer["reserved_peak_bytes"],
        answer["retries"],
        answer["criterion"],
        answer["seconds"],
    )


def _run_in_child(case: Case, stacks: bool, seconds: float) -> dict[str, Any]:
    key = (case.profile, case.workspaces, case.count)
    if case.cudnn_benchmark and key in _children:
        _children.pop(key).stop()
    if key not in _children or _children[key].process.poll() is not None:
        installed.library()
        installed.torch()
        _children[key] = _Child(*key)
    child = _children[key]
    try:
        answer = child.ask({"case": case.to_json(), "stacks": stacks}, seconds)
    except LateError:
        _children.pop(key).stop()
        raise
    except ChildError as error:
        _children.pop(key).stop()
        return {"error": str(error)}
    # What cuDNN has measured (or been asked for) once is not measured again in that process.
    if answer.pop("unclean", False) or case.cudnn_benchmark:
        _children.pop(key).stop()
    return answer
