"""Selective activation checkpointing: the policy functions behind the `save:` options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.utils import checkpoint as torch_checkpoint

from gpumem.checkpointing.options import SAVED_OPS


def selective_contexts_exist() -> bool:
    """Whether this torch has `create_selective_checkpoint_contexts` (2.5 and later)."""
    return hasattr(torch_checkpoint, "create_selective_checkpoint_contexts")


@functools.cache
def _name_and_dropout(op: Any) -> tuple[str, int | None]:
    """Qualified name without overload, and the position of `dropout_p` among the arguments."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        # Higher-order operators (flex_attention).
        return str(getattr(op, "__name__", op)), None
    names = [argument.name for argument in schema.arguments]
    return schema.name, names.index("dropout_p") if "dropout_p" in names else None


def is_saved(option: str, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the output of this call of `op` is kept under a selective option."""
    name, dropout = _name_and_dropout(op)
    if name not in SAVED_OPS[option]:
        return False
    if dropout is None:
        return True
    drawn = args[dropout] if dropout < len(args) else kwargs.get("dropout_p", 0.0)
    return not drawn


def _policy(option: str, context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    if is_saved(option, op, args, kwargs):
        return torch_checkpoint.CheckpointPolicy.MUST_SAVE
    return torch_checkpoint.CheckpointPolicy.PREFER_RECOMPUTE


# Made once: Dynamo must find them as constants.
_CONTEXT_FUNCTIONS: dict[str, Callable[[], Any]] = {
    option: functools.partial(torch_checkpoint.create_selective_checkpoint_contexts, functools.partial(_policy, option))
    for option in SAVED_OPS
    if selective_contexts_exist()
}


# Newer versions of torch warn unless told whether hooks on saved tensors, the tracer's or the user's, get kept outputs
# too; they never did.
_HOOKS = "respect_saved_tensors_hooks"
_ABOUT_HOOKS = {_HOOKS: False} if _HOOKS in inspect.signature(torch_checkpoint.checkpoint).parameters else {}


def selective_keywords(option: str, *, compiling: bool) -> dict[str, Any]:
    """Keywords of `torch.utils.checkpoint.checkpoint` for a selective option.

    Args:
        option: One of `SAVED_OPS`.
        compiling: Whether Dynamo sees the call, which takes the context function alone.
    """
    return {"context_fn": _CONTEXT_FUNCTIONS[option], **({} if compiling else _ABOUT_HOOKS)}
