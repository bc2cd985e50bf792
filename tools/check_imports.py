"""Fail when an import points the wrong way: DESIGN's order of layers, in Python and in the Rust core."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PYTHON_LAYERS = (
    ("errors",),
    ("units", "lazy", "hardware"),
    ("_core", "render"),
    ("virtual",),
    ("cudnn",),
    ("loop", "text"),
    ("checkpointing",),
    ("sources",),
    ("extraction",),
    ("planning",),
    ("api",),
    ("sweeping",),
    ("validation",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
"""A module may import from its own package and from earlier lines only."""

TORCH_ALLOWED = ("loop", "text", "checkpointing", "sources", "extraction", "planning", "validation")
"""Layers that may import torch at run time; elsewhere only under `TYPE_CHECKING`."""

RUST_FORBIDDEN = {
    # The allocator never learns what a layer is, formulas never learn what a block is.
    "allocator": (
        *("error", "formula", "spec", "target", "workspace", "timeline", "play", "report", "search", "setting"),
        *("regions", "chain"),
    ),
    # The search of plans knows bytes and costs only.
    "chain": ("allocator", "formula", "spec", "target", "timeline", "play", "report", "search", "setting", "regions"),
    "formula": ("allocator", "timeline", "play", "report", "search"),
    "workspace": ("allocator", "timeline", "play", "report", "search"),
    "target": ("allocator", "formula", "spec", "timeline", "play", "report", "search"),
    "spec": ("allocator", "timeline", "play", "report", "search"),
    "timeline": ("allocator", "play", "report", "search"),
    "play": ("report", "search"),
}
_RUST_USE = re.compile(r"^\s*(?:pub(?:\(crate\))?\s+)?use crate::(\w+)", re.MULTILINE)
_RANK = {name: rank for rank, names in enumerate(PYTHON_LAYERS) for name in names}


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, except those that only type checkers see."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from gpumem import errors` imports a layer, `from gpumem.errors import X` a name out of one.
            names = [f"gpumem.{alias.name}" for alias in node.names] if node.module == "gpumem" else [node.module]
            yield from ((node.lineno, name) for name in names)
        pending.extend(ast.iter_child_nodes(node))


def python_problems(package: Path) -> list[str]:
    """Imports in `package` (the folder of `gpumem`) against the order."""
    found = []
    for path in sorted(package.rglob("*.py")):
        layer = path.relative_to(package).parts[0].removesuffix(".py")
        for line, name in _imports(ast.parse(path.read_text(encoding="utf-8"))):
            parts = name.split(".")
            if parts[0] == "torch" and layer not in TORCH_ALLOWED:
                found.append(f"{path}:{line}: {layer} imports torch")
            if parts[0] != "gpumem":
                continue
            target = parts[1] if len(parts) > 1 and parts[1] in _RANK else "__init__"
            if layer not in _RANK:
                found.append(f"{path}:{line}: {layer} has no place in the order of layers")
            elif target != layer and _RANK[target] >= _RANK[layer]:
                found.append(f"{path}:{line}: {layer} imports {target}, which comes after it")
    return found


def rust_problems(core: Path) -> list[str]:
    """Uses in `core` (the `src` of gpumem-core) of modules that are forbidden to the module that uses them."""
    found = []
    for path in sorted(core.rglob("*.rs")):
        module = path.relative_to(core).parts[0].removesuffix(".rs")
        text = path.read_text(encoding="utf-8")
        for match in _RUST_USE.finditer(text):
            if match[1] in RUST_FORBIDDEN.get(module, ()):
                line = text.count("\n", 0, match.start(1)) + 1
                found.append(f"{path}:{line}: {module} uses {match[1]}")
    return found


def main() -> int:
    """Check the repository this file stands in."""
    root = Path(__file__).resolve().parent.parent
    package, core = root / "python" / "gpumem", root / "rust" / "gpumem-core" / "src"
    if not any(package.rglob("*.py")) or not any(core.rglob("*.rs")):
        print("check_imports: found no source file", file=sys.stderr)
        return 1
    problems = [*python_problems(package), *rust_problems(core)]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
