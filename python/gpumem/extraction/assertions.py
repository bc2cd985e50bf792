"""Whether a value is read to be checked: a program that runs has assertions that hold."""

from __future__ import annotations

import dis
from types import FrameType

from gpumem.extraction.host_reads import caller

_CHECKS = {"torch": "_check", "torch.distributions": ""}
"""Modules of PyTorch (with what is below them) and how their functions begin that raise unless a value is true."""

# Between the read and the jump: the rest of the call that reads, the conversion to a truth value, and the other side
# of a comparison.
_NOTHING = frozenset(("CACHE", "NOP", "TO_BOOL", "RESUME", "EXTENDED_ARG", "NOT_TAKEN"))
_COMPARED = frozenset(
    (
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_CONST",
        "LOAD_SMALL_INT",
        "LOAD_ATTR",
        "LOAD_GLOBAL",
        "LOAD_DEREF",
        "COMPARE_OP",
    )
)


def asserted_value() -> bool | None:
    """The answer that lets a check pass whose whole question is the value; None if the value is read otherwise.

    For `assert x.max().item() <= n`, where the value is compared, the answer is False, which stands for zero: the
    usual one, though it may not pass.
    """
    frame = caller()
    if frame is None:
        return None
    module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
    for checks, beginning in _CHECKS.items():
        inside = module == checks or (not beginning and module.startswith(f"{checks}."))
        if inside and function.startswith(beginning):
            return True
    return _asserted(frame)


def _asserted(frame: FrameType) -> bool | None:
    # A tensor by itself as a condition is read by the jump.
    following = iter(
        found
        for found in dis.get_instructions(frame.f_code)
        if (found.offset > frame.f_lasti or (found.offset == frame.f_lasti and "JUMP" in found.opname))
        and found.opname not in _NOTHING
    )
    compared = False
    for found in following:
        if "JUMP" in found.opname:
            raising = next(following, None)
            if raising is None or not _raises_assertion(raising):
                return None
            return found.opname.endswith("IF_TRUE") and not compared
        if found.opname not in _COMPARED:
            return None
        compared = compared or found.opname == "COMPARE_OP"
    return None


def _raises_assertion(instruction: dis.Instruction) -> bool:
    if instruction.opname == "LOAD_ASSERTION_ERROR":
        return True
    return instruction.opname == "LOAD_COMMON_CONSTANT" and "AssertionError" in instruction.argrepr
