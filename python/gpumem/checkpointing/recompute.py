"""One call of a region: run it now and again in the backward pass, through `torch.utils.checkpoint`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from gpumem.checkpointing.offload import Offloaded
from gpumem.checkpointing.options import OFFLOAD, REENTRANT, is_selective
from gpumem.checkpointing.selective import selective_keywords
from gpumem.checkpointing.state import KeptState, out_of_place, stand_ins
from gpumem.errors import RegionError

_VALUES = (torch.Tensor, int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


_holder: ContextVar[Callable[[Sequence[Any]], object] | None] = ContextVar("holder", default=None)


@contextlib.contextmanager
def arguments_reported(holder: Callable[[Sequence[Any]], object]) -> Iterator[None]:
    """While active, every region keeps `holder(arguments)` as long as it keeps its arguments for the backward pass."""
    token = _holder.set(holder)
    try:
        yield
    finally:
        _holder.reset(token)


class _Call:
    """The body of a region on arguments that are taken apart into leaves, each object once.

    Taken apart, tensors in lists and keywords are inputs like others (saved, checked for changes in place), and a list
    that the caller or the region itself extends later is the one it was when the region runs again. A tensor that is
    given twice is one object in both runs: `nn.MultiheadAttention` takes another path unless query, key and value are.
    The first run gets the arguments as they were given: what it appends to a list or puts into a dict is the caller's.
    """

    def __init__(
        self,
        option: str,
        body: Callable[..., Any],
        modules: Sequence[nn.Module],
        structure: pytree.TreeSpec,
        positions: Sequence[int],
        given: tuple[Any, Any],
    ) -> None:
        self._selective = is_selective(option)
        self._body = body
        self._modules = modules
        self._structure = structure
        self._positions = positions
        self._given: tuple[Any, Any] | None = given
        self._buffers = stand_ins(modules)
        self._ran = False
        self.held: object = None

    def __call__(self, *leaves: Any) -> Any:
        given, self._given = self._given, None
        args, kwargs = given or pytree.tree_unflatten([leaves[at] for at in self._positions], self._structure)
        with contextlib.ExitStack() as around:
            if self._ran:
                around.enter_context(KeptState(self._modules, self._buffers, once=self._selective))
            if self._selective:
                around.enter_context(out_of_place(self._modules))
            self._ran = True
            return self._body(*args, **kwargs)


def recomputed(
    label: str,
    option: str,
    body: Callable[..., Any],
    modules: Sequence[nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    preserve_rng_state: bool,
) -> Any:
    """Run `body(*args, **kwargs)` as a checkpointed region, or as one whose saved tensors wait on the host.

    Args:
        label: The region's path, for errors.
        option: One of `options.OPTIONS`.
        body: What to run.
        modules: The modules it consists of, whose running state is kept when it is run again.
        args: Its arguments.
        kwargs: Its keywords.
        preserve_rng_state: Whether random numbers are drawn again as they were.

    Returns:
        What `body` returned.

    Raises:
        RegionError: reentrant, and tensors would go in or out inside objects that autograd does not look into.
    """
    if option == OFFLOAD:
        with Offloaded(modules):
            return body(*args, **kwargs)
    compiling = torch.compiler.is_compiling()
    # Dynamo takes a `context_fn` only where it is selective, so the default one is not passed.
    selective = selective_keywords(option, compiling=compiling) if is_selective(option) else {}
    if compiling:
        # The compiler sees the region as one operation and itself leaves changes of buffers out of the second run.
        return checkpoint(
            lambda *values: body(*values, **kwargs),
            *args,
            use_reentrant=False,
            preserve_rng_state=preserve_rng_state,
            **selective,
        )
    given, structure = pytree.tree_flatten((args, kwargs))
    leaves = list({id(leaf): leaf for leaf in given}.values())
    place = {id(leaf): index for index, leaf in enumerate(leaves)}
    # What is run must not itself hold the leaves: that is left to autograd, which may have them on the CPU meanwhile.
    call = _Call(option, body, modules, structure, [place[id(leaf)] for leaf in given], (args, kwargs))
    del given
    holder = _holder.get()
    # A reentrant region has autograd save its arguments instead.
    if holder is not None and option != REENTRANT:
        call.held = holder(leaves)
    if option == REENTRANT:
        return _reentrant(label, call, modules, leaves, preserve_rng_state)
    return checkpoint(call, *leaves, use_reentrant=False, preserve_rng_state=preserve_rng_state, **selective)


def _reentrant(
    label: str, call: _Call, modules: Sequence[nn.Module], leaves: list[Any], preserve_rng_state: bool
) -> Any:
    for leaf in leaves:
        _refuse_hidden_tensors(label, "was given", leaf, only_if_trained=True)
    first: list[Any] = []
    if not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
        if not any(parameter.requires_grad for module in modules for parameter in module.parameters()):
            return call(*leaves)
        # Reentrant autograd reaches the region's parameters only through an input that requires a gradient.
        first.append(torch.empty(0, requires_grad=True))
    structure: pytree.TreeSpec | None = None

    def flat(*values: Any) -> Any:
        nonlocal structure
        results, structure = pytree.tree_flatten(call(*values[len(first) :]))
        for result in results:
            _refuse_hidden_tensors(label, "returned", result, only_if_trained=False)
        # A region that returns one tensor does so here, as without us.
        return results[0] if len(results) == 1 else tuple(results)

    out = checkpoint(flat, *first, *leaves, use_reentrant=True, preserve_rng_state=preserve_rng_state)
    assert structure is not None
    return pytree.tree_unflatten([out] if structure.num_leaves == 1 else list(out), structure)


def _refuse_hidden_tensors(label: str, verb: str, value: Any, *, only_if_trained: bool) -> None:
    if isinstance(value, _VALUES):
        return
    if dataclasses.is_dataclass(value):
        inside = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    elif isinstance(value, dict):
        inside = list(value.values())
    else:
        inside = list(getattr(value, "__dict__", {}).values())
    if any(isinstance(item, torch.Tensor) and (item.requires_grad or not only_if_trained) for item in inside):
        raise RegionError(
            f"region '{label}' is reentrant and {verb} tensors inside a {type(value).__name__}: reentrant autograd "
            "does not look into it, and their gradients would be lost",
            "use the option 'checkpoint', which does",
        )
