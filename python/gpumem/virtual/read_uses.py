"""What a program does with a value that it reads from the device, seen in its source.

A loss that is printed may be zero without harm; one that a branch hangs on may send the run another way. Looked at are
the expression that reads, and for a variable that takes the value the function around it.
"""

from __future__ import annotations

import ast
import dis
import linecache
from functools import lru_cache
from itertools import islice
from types import FrameType

BRANCH = "branch"
"""A branch, a loop or an assertion hangs on it."""
VALUE = "value"
"""It is read on purpose (`.item()`, `print`), and nothing in the function hangs on it."""
HIDDEN = "hidden"
"""A library read it on the way (`nonzero`, a mask, `GradScaler.step`), or there is no source to look at."""

_READERS = frozenset(
    (
        "item",
        "tolist",
        "cpu",
        "numpy",
        "to",
        "copy_",
        "float",
        "int",
        "bool",
        "complex",
        "print",
        "str",
        "repr",
        "format",
    )
)
_JUMPS = ("POP_JUMP", "JUMP_IF", "TO_BOOL")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)


def use_of(frame: FrameType) -> str:
    """What comes of the value that the instruction which `frame` is at reads: `BRANCH`, `VALUE` or `HIDDEN`."""
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if instruction.startswith(_JUMPS):
        # A tensor by itself as a condition; its place in the source may be all of the statement's.
        return BRANCH
    line, end_line, column, end_column = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    tree = _Tree.of(frame.f_code.co_filename)
    if tree is None or line is None or end_line is None or column is None or end_column is None:
        return HIDDEN
    return tree.use((line, column), (end_line, end_column))


class _Tree:
    """A parsed source file."""

    def __init__(self, module: ast.Module) -> None:
        self._parents = {child: node for node in ast.walk(module) for child in ast.iter_child_nodes(node)}

    @staticmethod
    @lru_cache(maxsize=64)
    def of(file: str) -> _Tree | None:
        """The tree of a file, or None if there is no source that parses."""
        try:
            return _Tree(ast.parse("".join(linecache.getlines(file))))
        except (SyntaxError, ValueError):
            return None

    def use(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        reading = self._expression(start, end)
        if reading is None:
            return HIDDEN
        node: ast.AST = reading
        names: set[str] = set()
        while (parent := self._parents.get(node)) is not None:
            if _decides(parent, node):
                return BRANCH
            if isinstance(parent, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
                targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
                names |= {found.id for target in targets for found in ast.walk(target) if isinstance(found, ast.Name)}
            if isinstance(parent, _SCOPES) and self._hangs_on(parent, names):
                return BRANCH
            if isinstance(parent, _SCOPES):
                break
            node = parent
        return VALUE if _is_reader(reading) or isinstance(self._parents.get(reading), ast.FormattedValue) else HIDDEN

    def _expression(self, start: tuple[int, int], end: tuple[int, int]) -> ast.expr | None:
        """The smallest expression that holds the instruction's place in the source."""
        holding = [
            node for node in self._parents if isinstance(node, ast.expr) and _start(node) <= start and end <= _end(node)
        ]
        # Of nested ones the inner begins last and ends first.
        return max(holding, key=lambda node: (_start(node), tuple(-at for at in _end(node))), default=None)

    def _hangs_on(self, scope: ast.AST, names: set[str]) -> bool:
        """Whether anything in `scope` hangs on one of the variables."""
        for used in ast.walk(scope):
            if isinstance(used, ast.Name) and used.id in names and isinstance(used.ctx, ast.Load):
                node: ast.AST = used
                while (parent := self._parents.get(node)) is not None and not isinstance(node, ast.stmt):
                    if _decides(parent, node):
                        return True
                    node = parent
        return False


def _decides(parent: ast.AST, child: ast.AST) -> bool:
    """Whether `child` is what `parent` looks at to go one way or another."""
    if isinstance(parent, ast.If | ast.While | ast.IfExp | ast.Assert):
        return parent.test is child
    if isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
        return parent.iter is child or child in getattr(parent, "ifs", ())
    if isinstance(parent, ast.Match):
        return parent.subject is child
    return isinstance(parent, ast.BoolOp)


def _is_reader(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in _READERS


def _start(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
