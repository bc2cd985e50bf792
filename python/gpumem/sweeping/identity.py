"""What a trace depends on, as text: two jobs with the same text have the same trace, on any day and machine.

A name of a library's model stands for that library's version. The user's own code has no version, so its content
counts: the sources of the factory's module and of all modules that it reaches through its globals, outside installed
packages.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import json
import pickle
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from gpumem.sources import LIBRARIES
from gpumem.sweeping.job import SCHEMA, Job

_DISTRIBUTIONS = {"timm": ("timm",), "torchvision": ("torchvision",), "hf": ("transformers",)}
_ALWAYS = ("torch",)


class NoIdentityError(Exception):
    """The content of what a job runs cannot be told, so it is traced each time."""


def identity(job: Job) -> str:
    """Everything that the trace of `job` depends on.

    Raises:
        NoIdentityError: its content cannot be told: a source that is not on disk, a criterion that does not pickle, a
            configuration in the Hugging Face cache.
    """
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        # Sources rather than a version: in a checkout the version stays while they change.
        "gpumem": _gpumem_digest(),
        "versions": {name: _version(name) for name in _ALWAYS},
        "python": list(sys.version_info[:2]),
        "planned": job.planned,
        "batch": job.batch,
        "loop": {name: _content(value) for name, value in sorted(job.loop.items())},
        "model": _named(job.model) if isinstance(job.model, str) else _content(job.model),
    }
    return json.dumps(facts, sort_keys=True)


def _named(name: str) -> Any:
    library, _, rest = name.partition(":")
    if library in LIBRARIES:
        facts: dict[str, Any] = {"name": name, "versions": {d: _version(d) for d in _DISTRIBUTIONS[library]}}
        if library == "hf" and Path(rest).is_dir():
            facts["config"] = _file_digest(str(Path(rest) / "config.json"))
        elif library == "hf" and "/" in rest:
            raise NoIdentityError(f"{name}: its configuration is in the Hugging Face cache")
        return facts
    try:
        module = importlib.import_module(library)
    except Exception as error:
        raise NoIdentityError(f"{name}: {error}") from error
    return {"name": name, "sources": _sources([module])}


def _content(value: Any) -> Any:
    """Plain values as they are; functions and classes with the sources that they reach."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_content(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _content(item) for name, item in value.items()}
    if isinstance(value, functools.partial):
        return {"partial": _content(value.func), "of": _content(value.args), "with": _content(value.keywords)}
    try:
        pickled = hashlib.sha256(pickle.dumps(value, protocol=4)).hexdigest()
    except Exception as error:
        raise NoIdentityError(f"{value!r} cannot be pickled: {error}") from error
    module = sys.modules.get(getattr(value, "__module__", None) or type(value).__module__)
    return {"pickle": pickled, "sources": _sources([] if module is None else [module])}


def _sources(modules: list[ModuleType]) -> dict[str, str]:
    """Digests of the modules' sources and of those they reach; of installed packages, the version."""
    found: dict[str, str] = {}
    pending = list(modules)
    while pending:
        module = pending.pop()
        top = module.__name__.partition(".")[0]
        file = getattr(module, "__file__", None)
        if file is None or module.__name__ in found:
            # Built in, or a package without code.
            if file is None and module.__name__ == "__main__":
                raise NoIdentityError("the factory was typed into an interpreter")
            continue
        if _is_installed(file):
            found[top] = _version(top)
        else:
            found[module.__name__] = _file_digest(file)
            pending += [other for other in _reached(module) if other.__name__ not in found]
    return dict(sorted(found.items()))


def _reached(module: ModuleType) -> Iterator[ModuleType]:
    for value in list(vars(module).values()):
        other = value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None) or "")
        if isinstance(other, ModuleType):
            yield other


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(str(Path(paths[name]).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    return "site-packages" in path.parts or any(path.is_relative_to(folder) for folder in _installed_folders())


@functools.cache
def _version(package: str) -> str:
    owners = importlib.metadata.packages_distributions().get(package, ())
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(owners)))


@functools.cache
def _gpumem_digest() -> str:
    """Of all that traces and assembles; the traces of another build are not taken for those of this one."""
    folder = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for file in sorted(path for suffix in ("*.py", "*.txt", "_core.*") for path in folder.rglob(suffix)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _file_digest(file: str | None) -> str:
    if file is None:
        raise NoIdentityError("a module without a file")
    path = Path(file)
    try:
        stat = path.stat()
        return _digest_of(str(path), stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise NoIdentityError(str(error)) from error


@functools.cache
def _digest_of(file: str, mtime_ns: int, size: int) -> str:
    """Read once for each state of the file."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
