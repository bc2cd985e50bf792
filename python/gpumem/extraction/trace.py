"""One traced run of the loop: everything that makes meta behave as CUDA, switched on around it and off again."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gpumem.checkpointing.apply import apply_regions
from gpumem.checkpointing.caches import caches_left_out
from gpumem.checkpointing.recompute import arguments_reported
from gpumem.errors import GpumemError, InputError
from gpumem.extraction.autocast import autocast_on_meta, clear_casts
from gpumem.extraction.caller import caller_left, random_state_kept, random_was_drawn
from gpumem.extraction.devices import META, CudaDevices
from gpumem.extraction.environment import cuda_environment, host_transfers, patched
from gpumem.extraction.failures import Subject, explained
from gpumem.extraction.host_draws import HIGHEST, host_draws
from gpumem.extraction.inputs import describe, make_inputs
from gpumem.extraction.installed import assumed
from gpumem.extraction.interrupts import interrupts_between_operations
from gpumem.extraction.layers import index_layers, layers_followed
from gpumem.extraction.ops import CHOICES, HANDLERS, VERIFIED
from gpumem.extraction.ops.accumulate import held_once_counts
from gpumem.extraction.ops.recurrent_weights import flatten_weights
from gpumem.extraction.recorder import Recorder
from gpumem.extraction.regions import RegionRecorder, holds_followed
from gpumem.extraction.structural import meta_copy, tensors_in_move_order
from gpumem.extraction.target import KernelTarget, targeting
from gpumem.loop import (
    PURE_DTYPES,
    LoopConfig,
    autocast,
    call,
    infer,
    optimizers_in_backward,
    prepare_on_host,
    train,
    train_with,
)

one_at_a_time = threading.RLock()
"""Held by a running trace, which looks at the process's random generators and changes what `torch.cuda` says."""


def _without_devices(choice: Callable[..., Any]) -> Callable[..., Any]:
    """`choice` with meta tensors that say so, also where the autograd engine calls it."""

    @functools.wraps(choice)
    def without(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return choice(*args, **kwargs)

    return without


@contextlib.contextmanager
def cuda_choices() -> Iterator[None]:
    """Composite ops that look at the device take CUDA's branch for meta tensors."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, choice in CHOICES.items():
            library.impl(name, _without_devices(choice), "AutogradMeta")
    try:
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def cuda_on_meta(rec: Recorder, target: KernelTarget) -> Iterator[None]:
    """Everything on: in this thread, code written for CUDA runs on meta tensors and `rec` records it."""
    # Needs an ordinary autograd run, which inside the modes would itself be traced.
    held_once_counts()
    with (
        targeting(target),
        cuda_choices(),
        patched(
            [
                *cuda_environment(target, clear_casts, rec.note),
                *host_draws(rec.host_draw, rec.note),
                *host_transfers(rec.host_transfer),
            ]
        ),
        autocast_on_meta(),
        CudaDevices(),
        rec,
    ):
        if (sentence := assumed()) is not None:
            rec.note(sentence)
        yield


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A garbage collection in the middle of a trace would free cycles at an arbitrary event."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Tracer:
    """Runs the loop for one model, as often as batch sizes are asked for."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        config: LoopConfig,
        target: KernelTarget,
        make_optimizer: Callable[[Any], torch.optim.Optimizer] | None,
        step: Callable[[nn.Module, torch.optim.Optimizer, Any], Any] | None = None,
        *,
        allow_host_reads: bool = False,
        caches: bool = True,
    ) -> None:
        if make_optimizer is not None:
            # Optimizers load it at first use: it must not find the traced environment in place of torch.cuda.
            importlib.import_module("torch._dynamo")
        # The structure is copied once; each run gets its own copy of that, since modules may cache tensors.
        with caller_left():
            self._structure = prepare_on_host(meta_copy(model), config)
        if not caches:
            caches_left_out(self._structure)
        self._inputs = inputs
        self._config = config
        self._target = target
        self._make_optimizer = make_optimizer
        self._step = step
        self._allow_host_reads = allow_host_reads
        self._float_dtype = PURE_DTYPES.get(config.precision)
        self._subject = Subject(type(model).__name__, describe(inputs), step is not None)

    @property
    def layer_kinds(self) -> list[str]:
        """Class name of each module, in the order of the recorder's layers."""
        return [type(module).__name__ for _, module in self._structure.named_modules()]

    def _batch(self, tree: Any, batch: int) -> Any:
        return make_inputs(tree, batch, "cuda", self._float_dtype, self._config.channels_last)

    def probe(self, batch: int, judge: Callable[[Any], Any] = lambda output: output) -> Any:
        """Run one forward pass without recording and return what `judge` makes of its output."""
        with self._running({}) as (rec, model):
            rec.recording = False
            with autocast(self._config):
                return judge(call(model, self._batch(self._inputs, batch)))

    @contextlib.contextmanager
    def _running(self, regions: Mapping[str, str], rec: Recorder | None = None) -> Iterator[tuple[Recorder, nn.Module]]:
        rec = Recorder(HANDLERS, VERIFIED) if rec is None else rec
        rec.allow_host_reads = self._allow_host_reads
        with one_at_a_time, _no_collection(), caller_left(), random_state_kept():
            model = meta_copy(self._structure)
            layer_index = index_layers(model, rec)
            if regions:
                apply_regions(model, regions)
            _register_model(rec, model, layer_index, self._target)
            try:
                with (
                    interrupts_between_operations(rec),
                    layers_followed(layer_index, rec),
                    cuda_on_meta(rec, self._target),
                ):
                    yield rec, model
            except GpumemError:
                raise
            except Exception as error:
                raise explained(error, rec, self._subject) from error

    def run_regions(
        self, batch: int, paths: Sequence[str], regions: Mapping[str, str], criterion: Any = None, target: Any = None
    ) -> RegionRecorder:
        """Trace the loop with `regions` checkpointed, following the modules at `paths`; otherwise as `run`."""
        rec = RegionRecorder(HANDLERS, VERIFIED, paths)
        with (
            self._running(regions, rec) as (_, model),
            arguments_reported(rec.arguments_held),
            holds_followed(rec),
        ):
            self._loop(rec, model, batch, criterion, target)
            rec.recording = False
        return rec

    def run(
        self,
        batch: int,
        criterion: Any = None,
        target: Any = None,
        draw: float = HIGHEST,
        regions: Mapping[str, str] | None = None,
    ) -> Recorder:
        """Trace the loop at this batch size.

        Args:
            batch: Batch size.
            criterion: `(output, target) -> loss`, for the reference training loop.
            target: Tree of `TensorSpec` for the target, or None.
            draw: What single random numbers drawn on the host are answered with.
            regions: Checkpointed regions and their options (`gpumem.checkpointing.apply_regions`).

        Returns:
            The recorder, closed: nothing is recorded any more.
        """
        with self._running(regions or {}) as (rec, model):
            rec.draw = draw
            self._loop(rec, model, batch, criterion, target)
            rec.recording = False
            if random_was_drawn():
                rec.note("random numbers were drawn on the host: what depends on them is one course of many (seed 0)")
        return rec

    def _loop(self, rec: Recorder, model: nn.Module, batch: int, criterion: Any, target: Any) -> None:
        def next_batch() -> tuple[Any, Any]:
            inputs = self._batch(self._inputs, batch)
            expected = None if target is None else make_inputs(target, batch, "cuda", None, False)
            _tag(rec, (inputs, expected), "input")
            return inputs, expected

        if self._config.mode == "infer":
            infer(model, next_batch, self._config, rec.mark)
            return
        assert self._make_optimizer is not None
        optimizers = self._optimizers([p for p in model.parameters() if p.requires_grad])
        for optimizer in optimizers:
            _tag_state(rec, optimizer)
        steps = 0

        def before_step(opt: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            for group in opt.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        rec.tag(parameter.grad, "grad")

        def after_step(opt: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            nonlocal steps
            steps += 1
            _tag_state(rec, opt)

        for optimizer in optimizers:
            optimizer.register_step_pre_hook(before_step)
            optimizer.register_step_post_hook(after_step)
        if self._step is not None:
            train_with(self._step, model, optimizers[0], next_batch, self._config, rec.mark)
            if not steps:
                raise InputError(
                    "step never called optimizer.step()",
                    "one call of step is one optimizer step, accumulation included; for inference pass mode='infer'",
                )
        else:
            optimizer_or_none = None if self._config.step_in_backward else optimizers[0]
            train(model, optimizer_or_none, next_batch, criterion, self._config, rec.mark)

    def _optimizers(self, parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
        """The optimizer of all parameters; where they are updated in the backward pass, one for each."""
        make = self._make_optimizer
        assert make is not None

        def made(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            optimizer = make(parameters)
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise InputError(
                    f"the optimizer function returned {type(optimizer).__name__}, not a torch.optim.Optimizer"
                )
            return optimizer

        return optimizers_in_backward(made, parameters) if self._config.step_in_backward else [made(parameters)]


def _register_model(rec: Recorder, model: nn.Module, layer_index: dict[int, int], target: KernelTarget) -> None:
    """Record parameters and buffers as `model.cuda()` moves them; recurrent layers then flatten their weights."""

    def moved(module: nn.Module | None) -> None:
        flatten_weights(module, target.cudnn_rnn, lambda flat: rec.register(flat, "param", layer_index[id(module)]))

    last: nn.Module | None = None
    for category, owner, tensor in tensors_in_move_order(model):
        if owner is not last:
            moved(last)
            last = owner
        rec.register(tensor, category, layer_index[id(owner)])
    moved(last)


def _tag(rec: Recorder, tree: Any, category: str) -> None:
    if isinstance(tree, torch.Tensor):
        with torch._C.DisableTorchFunction():
            if tree.device == META:
                rec.tag(tree, category)
    elif isinstance(tree, dict):
        for item in tree.values():
            _tag(rec, item, category)
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            _tag(rec, item, category)


def _tag_state(rec: Recorder, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        _tag(rec, state, "optimizer")
