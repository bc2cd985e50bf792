"""What stands in a module's `forward` while a plan is applied."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from gpumem.checkpointing.caches import without_fresh_caches
from gpumem.checkpointing.recompute import recomputed
from gpumem.checkpointing.state import buffer_versions


@dataclass(frozen=True)
class Segment:
    """Members `start` to `stop - 1` of an `nn.Sequential`, run as one region.

    Attributes:
        start: First member.
        stop: One past the last.
        option: One of `options.OPTIONS`.
    """

    start: int
    stop: int
    option: str


def _run_chain(steps: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    for step in steps:
        value = step(value)
    return value


class RegionForward:
    """The forward of one module, as a checkpointed region and/or with checkpointed segments.

    An object in the module's `__dict__` and not a closure, so that it goes with the module: a deep copy or a pickle of
    the model has its own, which runs the copy.

    Attributes:
        module: Whose forward it is.
        path: Its dotted path, for messages.
        replaced: The `forward` that was in the module's `__dict__` before (patched by someone else), or None.
        option: The region's option, or None where only segments are regions.
        segments: Regions among the members of an `nn.Sequential`, in order.
        preserve_rng_state: Whether random numbers are drawn again as they were.
        configs_without_cache: Configurations whose `use_cache` was switched off for the plan (one region has them all).
    """

    def __init__(
        self,
        module: nn.Module,
        path: str,
        option: str | None,
        segments: tuple[Segment, ...],
        *,
        preserve_rng_state: bool,
    ) -> None:
        self.module = module
        self.path = path
        self.replaced: Callable[..., Any] | None = module.__dict__.get("forward")
        self.option = option
        self.segments = segments
        self.preserve_rng_state = preserve_rng_state
        self.configs_without_cache: list[Any] = []
        self._checked_buffers = False

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The forward as it was; `inspect.signature` looks here."""
        if self.replaced is not None:
            return self.replaced
        return type(self.module).forward.__get__(self.module)  # type: ignore[no-any-return]

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward; where gradients are recorded in training, as a region."""
        if not (self.module.training and torch.is_grad_enabled()):
            return self.__wrapped__(*args, **kwargs)
        body = self._segmented if self.segments else self.__wrapped__
        if self.option is None:
            return body(*args, **kwargs)
        return self._region(self.path, self.option, body, (self.module,), args, kwargs)

    def _segmented(self, value: Any) -> Any:
        # One loop, as `nn.Sequential` has it: nothing holds a value longer than the step that takes it.
        return _run_chain(self._steps(), value)

    def _steps(self) -> list[Callable[[Any], Any]]:
        """Members that are in no segment, and segments, in order."""
        members = list(cast(nn.Sequential, self.module))
        steps: list[Callable[[Any], Any]] = []
        position = 0
        for segment in self.segments:
            steps += members[position : segment.start]
            steps.append(functools.partial(self._segment, segment, members[segment.start : segment.stop]))
            position = segment.stop
        return steps + members[position:]

    def _segment(self, segment: Segment, members: Sequence[nn.Module], value: Any) -> Any:
        label = f"{self.path}[{segment.start}:{segment.stop}]"
        return self._region(label, segment.option, functools.partial(_run_chain, members), members, (value,), {})

    def _region(
        self,
        label: str,
        option: str,
        body: Callable[..., Any],
        modules: Sequence[nn.Module],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if torch.compiler.is_compiling():
            return recomputed(label, option, body, modules, args, kwargs, preserve_rng_state=self.preserve_rng_state)
        args, kwargs = without_fresh_caches(label, self.module, args, kwargs)
        before = {} if self._checked_buffers else buffer_versions(modules)
        out = recomputed(label, option, body, modules, args, kwargs, preserve_rng_state=self.preserve_rng_state)
        if before:
            self._warn_of_changed_buffers(label, before, modules)
        return out

    def _warn_of_changed_buffers(
        self, label: str, before: dict[tuple[nn.Module, str], int], modules: Sequence[nn.Module]
    ) -> None:
        self._checked_buffers = True
        after = buffer_versions(modules)
        changed = [
            f"{type(module).__name__}.{name}"
            for (module, name), old in before.items()
            if after.get((module, name), old) != old
        ]
        if changed:
            warnings.warn(
                f"the forward pass of region '{label}' changes the buffer {changed[0]}"
                + (f" and {len(changed) - 1} more" if len(changed) > 1 else "")
                + ": run again in the backward pass it changes them again, and reads them as the first run left them",
                stacklevel=5,
            )
