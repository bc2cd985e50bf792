"""The installed cuDNN, asked what workspaces convolutions take on a named card, in a process of its own.

cuDNN (9.8 and later) answers about a card that is not there from its description. Nothing is asked in this process:
no CUDA is started, no GPU is touched or hidden, and a crash is an answer that is missing.
"""

from __future__ import annotations

from gpumem.cudnn.asker import Asker, asker_of
from gpumem.cudnn.installed import installed_cudnn
from gpumem.errors import CudnnError, UnknownNameError

CHOICES = ("auto", "cudnn", "rules")
"""Who says how large workspaces are: cuDNN where it can be asked, cuDNN or it is an error, the fitted rules."""

Version = tuple[int, int]


def library(choice: str, stack: tuple[Version, Version | None] | None) -> tuple[Asker | None, bool, str]:
    """Who is asked about convolutions; called by the compiled core for every question.

    Args:
        choice: One of `CHOICES`.
        stack: Versions of PyTorch and CUDA that the target has, if they were given.

    Returns:
        Whom to ask or None, whether that is required, and why nobody is asked.

    Raises:
        UnknownNameError: no such choice.
        CudnnError: cuDNN is required and is not installed, or is not the target's.
    """
    if choice not in CHOICES:
        raise UnknownNameError(
            f"conv_workspaces must be {', '.join(map(repr, CHOICES))}, not {choice!r}",
            "'auto' asks the installed cuDNN where there is one",
        )
    if choice == "rules":
        return None, False, ""
    try:
        found = installed_cudnn()
        found.check_stack(stack)
    except CudnnError as error:
        if choice == "cudnn":
            raise
        return None, False, error.message
    return asker_of(found), choice == "cudnn", ""
