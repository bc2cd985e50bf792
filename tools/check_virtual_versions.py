"""Puts the virtual GPU to the test with old and new versions of PyTorch, each in an environment of its own.

    python -m tools.check_virtual_versions [--environments DIR] [--keep] [torch version ...]

For each version: which CUDA entry points it needs that the device does not have (`gpumem.virtual.symbols`), the tests
in `tests/virtual`, and a selection of comparisons between estimate and device. `make setup` comes first: sources are
used in place. An environment takes 5 GB and is deleted afterwards, unless --keep is given. What came of a version is
kept in `target/versions`; the table in `benchmarks/results/versions.md` is made of all that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.check_versions import ROOT, TOOLS, environment

# Each torch with the torchvision and numpy of its time, and what the package itself needs.
NEEDED = ("rich", "typer")
VERSIONS = {
    "2.4.1": ("torchvision==0.19.1", "numpy<2"),
    "2.5.1": ("torchvision==0.20.1", "numpy>=2"),
    "2.6.0": ("torchvision==0.21.0", "numpy>=2"),
    "2.7.1": ("torchvision==0.22.1", "numpy>=2"),
    "2.8.0": ("torchvision==0.23.0", "numpy>=2"),
    "2.9.1": ("torchvision==0.24.1", "numpy>=2"),
    "2.10.0": ("torchvision==0.25.0", "numpy>=2"),
    "2.11.0": ("torchvision==0.26.0", "numpy>=2"),
    "2.12.0": ("torchvision==0.27.0", "numpy>=2"),
    "2.13.0": ("torchvision==0.28.0", "numpy>=2"),
    "2.14.1": ("torchvision==0.29.1", "numpy>=2"),
    "2.15.0": ("torchvision==0.29.2", "numpy>=2"),
}
DEVICE = ("tests/virtual",)
# Convolutions, attention, gather and scatter, every optimizer form: no package but torch and torchvision.
PARITY = (
    "tests/parity/test_parity.py",
    "-k",
    "tv:resnet18 or tv:vit_b_16 or unet:plain or nn:encoder or nn:mlp_norm or misc:checkpoint or fused or counters",
)
KEPT = ROOT / "target" / "versions"
RESULT = ROOT / "benchmarks" / "results" / "versions.md"
_HEAD = """# The virtual GPU with other versions of PyTorch

`python -m tools.check_virtual_versions`, Linux x86-64, builds from PyPI. "Missing": entry points that the build needs
and the device does not have. "Device": tests in `tests/virtual`; those skipped need packages that are not installed.
"Parity": comparisons of estimate and device, every allocation and free in order.

| torch | CUDA | cuDNN | missing | device: passed / failed / skipped | parity: passed / failed / skipped | what failed |
|---|---|---|---|---|---|---|
"""
# Parts of the names of tests that fail with other versions, and why, as far as it is known.
_CAUSES = {
    "equals_cuda": """With 2.12 every allocation and free is in order and equal; its allocator takes other free blocks
(as neither the version before nor the one after does), which moves a peak by 61,440 bytes or 2 MiB.""",
    "operations_run_through": """With 2.7 (cuDNN 9.5) cuDNN's attention finds no plan: before 9.8 cuDNN cannot be
told of a device that is not there. With 2.15 the profiler crashes: there is no CUPTI for the device.""",
    "test_every_event": """The recordings are of versions that keep cuBLAS's workspace; 2.15 requests one for each
product.""",
    "two_processes_train_together": """DistributedDataParallel of 2.15 compares numbers of parameters that came through
NCCL, which carries no values here.""",
    "expandable_segments_reserve": "2.13 asks NVML for the fabric of a card, which the device does not answer.",
}
_ABOUT = """
import importlib.metadata, json, torch
names = [d.metadata["Name"] for d in importlib.metadata.distributions()]
cudnn = [importlib.metadata.version(n) for n in names if n and n.startswith("nvidia-cudnn")]
print(json.dumps([torch.__version__, torch.version.cuda, cudnn[0] if cudnn else "?"]))
"""


@dataclass(frozen=True)
class Outcome:
    """Tests that passed, failed and were skipped, and the names of those that failed."""

    passed: int
    failed: int
    skipped: int
    failures: list[str]

    def counts(self) -> str:
        """The three numbers."""
        return f"{self.passed} / {self.failed} / {self.skipped}"


def outcome(junit: Path) -> Outcome:
    """Read pytest's report."""
    passed = skipped = 0
    failures = []
    for case in ElementTree.parse(junit).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failures.append(str(case.get("name")))
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return Outcome(passed, len(failures), skipped, failures)


@dataclass(frozen=True)
class Result:
    """What came of one version."""

    torch: str
    cuda: str
    cudnn: str
    missing: list[str]
    device: Outcome
    parity: Outcome

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Inverse of `json.dumps(asdict(result))`."""
        fields = json.loads(text)
        return cls(**{**fields, "device": Outcome(**fields["device"]), "parity": Outcome(**fields["parity"])})

    def good(self) -> bool:
        """Nothing is missing and nothing failed."""
        return not self.missing and not self.device.failed and not self.parity.failed

    def row(self) -> str:
        """A line of the table."""
        failures = ", ".join(f"`{name}`" for name in (*self.device.failures, *self.parity.failures)) or "nothing"
        missing = ", ".join(self.missing) or "none"
        cells = (self.torch, self.cuda, self.cudnn, missing, self.device.counts(), self.parity.counts(), failures)
        return f"| {' | '.join(cells)} |"


def _tests(python: Path, variables: dict[str, str], *selection: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        options = ("-q", "-p", "no:cacheprovider", f"--junitxml={report}")
        command = (str(python), "-m", "pytest", *options, *selection)
        # The tests look for files left behind in the folder for temporary files, which others use too.
        subprocess.run(command, cwd=ROOT, check=False, env={**variables, "TMPDIR": folder})
        return outcome(report)


def check(python: Path) -> Result:
    """Put the version of an environment to the test."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    about = subprocess.run([python, "-c", _ABOUT], check=True, capture_output=True, text=True)
    torch, cuda, cudnn = json.loads(about.stdout)
    symbols = subprocess.run(
        [python, "-m", "gpumem.virtual.symbols"], cwd=ROOT, env=variables, check=False, capture_output=True, text=True
    )
    missing = [line.split()[0] for line in symbols.stdout.splitlines()]
    if symbols.returncode not in (0, 1):
        missing = [symbols.stderr.strip()]
    device, parity = _tests(python, variables, *DEVICE), _tests(python, variables, *PARITY)
    return Result(torch, cuda, cudnn, missing, device, parity)


def _write() -> None:
    files = [KEPT / f"{version}.json" for version in VERSIONS]
    results = [Result.from_json(file.read_text(encoding="utf-8")) for file in files if file.exists()]
    failures = [name for result in results for name in (*result.device.failures, *result.parity.failures)]
    causes = [f"- `{part}`: {why}" for part, why in _CAUSES.items() if any(part in name for name in failures)]
    lines = [result.row() for result in results] + (
        ["", "What is known of the failures:", "", *causes] if causes else []
    )
    RESULT.write_text(_HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Test each version; 0 when nothing failed and no entry point is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=list(VERSIONS), help=f"of {', '.join(VERSIONS)}")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venvs", help="where they are made")
    parser.add_argument("--keep", action="store_true", help="do not delete environments")
    arguments = parser.parse_args()
    unknown = set(arguments.versions) - set(VERSIONS)
    if unknown:
        parser.error(f"unknown versions: {', '.join(sorted(unknown))}")
    KEPT.mkdir(parents=True, exist_ok=True)
    good = True
    for version in arguments.versions:
        python = environment(arguments.environments, version, (*VERSIONS[version], *TOOLS, *NEEDED))
        result = check(python)
        (KEPT / f"{version}.json").write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")
        print(result.row(), flush=True)
        good = good and result.good()
        if not arguments.keep:
            shutil.rmtree(python.parent.parent)
        _write()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
