"""The structure checks pass on this repository, and would fail on a bad one."""

from __future__ import annotations

from pathlib import Path

from tools import check_imports, check_sizes

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "gpumem"
CORE = ROOT / "rust" / "gpumem-core" / "src"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_imports_point_one_way() -> None:
    assert check_imports.python_problems(PACKAGE) == []
    assert check_imports.rust_problems(CORE) == []


def test_every_python_module_has_a_layer() -> None:
    layers = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert layers <= {name for names in check_imports.PYTHON_LAYERS for name in names}
    assert len(layers) > 5


def test_a_wrong_python_import_is_found(tmp_path: Path) -> None:
    _write(tmp_path / "units.py", "def late():\n    from gpumem.api import estimate\n")
    _write(tmp_path / "render.py", "import torch.nn\n")
    _write(tmp_path / "api.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n")
    _write(tmp_path / "novel.py", "from gpumem import errors\n")
    assert [problem.partition(": ")[2] for problem in check_imports.python_problems(tmp_path)] == [
        "novel has no place in the order of layers",
        "render imports torch",
        "units imports api, which comes after it",
    ]


def test_a_wrong_rust_use_is_found(tmp_path: Path) -> None:
    _write(tmp_path / "allocator" / "block.rs", "use crate::units::MIB;\npub use crate::spec::ModelSpec;\n")
    _write(tmp_path / "report.rs", "use crate::allocator::Driver;\n")
    problems = check_imports.rust_problems(tmp_path)
    assert [problem.rpartition("/")[2] for problem in problems] == ["block.rs:2: allocator uses spec"]


def test_no_file_has_outgrown_one_job() -> None:
    assert len(check_sizes.source_files(ROOT)) > 50
    assert check_sizes.too_long(ROOT) == []


def test_a_long_file_is_found(tmp_path: Path) -> None:
    _write(tmp_path / "python" / "long.py", "x = 1\n" * (check_sizes.CEILING_LINES + 1))
    _write(tmp_path / "rust" / "short.rs", "\n" * check_sizes.CEILING_LINES)
    assert check_sizes.too_long(tmp_path) == ["python/long.py: 451 lines (at most 450)"]
