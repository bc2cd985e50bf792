"""What is said of a program's reads from the device; a stand-in for tensors tells of each."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from gpumem.virtual.host_reads import HostReads
from gpumem.virtual.read_uses import BRANCH, HIDDEN, VALUE

# Each line that reads is one case, and the only one of its program.
CASES = [
    ("if t.item() > 0: pass", BRANCH),
    ("if t: pass", BRANCH),
    ("while t.item(): pass", BRANCH),
    ("x = 1 if t > 0 else 2", BRANCH),
    ("assert not t.item()", BRANCH),
    ("for i in range(int(t)): pass", BRANCH),
    ("x = [i for i in (1,) if t]", BRANCH),
    ("x = t.item() or 5", BRANCH),
    ("x = t.item()\nif x > 3: pass", BRANCH),
    ("def f():\n    x = 0\n    x += t.item()\n    return x > 1 and x < 2\nf()", BRANCH),
    ("if (x := t.item()) > 1: pass", BRANCH),
    ("if t.equal(t): pass", BRANCH),
    ("print(t.item())", VALUE),
    ("print(f'{t.item():.3f}')", VALUE),
    ("print('loss %.3f' % t.item())", VALUE),
    ("losses = []\nlosses.append(t.item())", VALUE),
    ("total = 0.0\ntotal += t.item()\nprint(total)", VALUE),
    ("x = t.tolist()", VALUE),
    ("x = t.cpu().numpy()", VALUE),
    ("x = float(t)", VALUE),
    ("def f():\n    x = t.item()\n    print(x)\nx = 3\nf()\nif x > 2: pass", VALUE),
    ("x = t.nonzero()", HIDDEN),
    ("t.step()", HIDDEN),
]

STAND_IN = """
class Tensor:
    def __init__(self, note):
        self._note = note
    def item(self):
        self._note(4)
        return 0
    __bool__ = lambda self: bool(self.item())
    __int__ = __index__ = item
    __float__ = lambda self: float(self.item())
    __gt__ = lambda self, other: self.item() > other
    tolist = nonzero = step = numpy = item
    equal = lambda self, other: bool(self.item())
    cpu = lambda self: self
"""


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_uses(tmp_path: Path, text: str, expected: str) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "stand_in.py").write_text(STAND_IN)
    program = tmp_path / "program.py"
    program.write_text(text + "\n")
    reads = HostReads((str(library), runpy.__file__, __file__))
    tensor = runpy.run_path(str(library / "stand_in.py"))["Tensor"](reads.note)
    runpy.run_path(str(program), init_globals={"t": tensor})
    (read,) = reads.found()
    assert (read.use, read.reads, read.scalars) == (expected, 1, 1)
    assert str(program) in read.site


def test_a_program_without_source_is_not_judged() -> None:
    reads = HostReads(())
    exec(compile("if note(4) is None: pass", "/nowhere/program.py", "exec"), {"note": reads.note})
    (read,) = reads.found()
    assert read.use == HIDDEN
