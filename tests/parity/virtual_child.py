"""The process on the virtual GPU: reads cases (JSON lines) from stdin, answers with events and peaks on stdout.

It runs `gpumem.loop` as it is, with the inputs, criterion and optimizer of gpumem, on `model.cuda()`.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy
import torch

# Optimizers import it at first use; loaded here, its objects are out of sight of the collections between runs.
import torch._dynamo
from torch import nn

from gpumem.checkpointing.apply import apply_regions
from gpumem.checkpointing.caches import caches_left_out
from gpumem.extraction.criterion import ChosenCriterion, choose_criterion
from gpumem.extraction.inputs import make_inputs
from gpumem.extraction.optimizer import optimizer_factory
from gpumem.loop import (
    PURE_DTYPES,
    LoopConfig,
    call,
    infer,
    matmul_precision,
    optimizers_in_backward,
    prepare_on_host,
    train,
)
from tests.parity.case import Case
from tests.parity.models import LoadedModel, load

_HISTORY_ENTRIES = 5_000_000
_GLUE = ("c10::impl::", "_ops::", "detail::", "wrapper_", "Functor", "redispatch", "make_boxed", "TensorIteratorBase::")


def host_copy(model: nn.Module) -> nn.Module:
    """A deep copy whose parameters are fresh untouched memory: values never matter here, and reading them is slow."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in memo:
                twin = torch.empty_strided(tuple(parameter.shape), parameter.stride(), dtype=parameter.dtype)
                memo[id(parameter)] = nn.Parameter(twin, parameter.requires_grad)
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype)
    return copy.deepcopy(model, memo)


def clean() -> int:
    """Return everything to the driver; the answer is what stays reserved."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


class Child:
    """Holds the last model built, so that several settings of one model build it once."""

    def __init__(self) -> None:
        self._reference = ""
        self._loaded: LoadedModel | None = None
        self._criterion: ChosenCriterion | None = None

    def _load(self, reference: str, batch: int) -> LoadedModel:
        if reference != self._reference or self._loaded is None:
            self._loaded = self._criterion = None
            gc.unfreeze()
            gc.collect()
            self._reference = ""
            self._loaded = load(reference)
            self._criterion = self._probe(self._loaded, batch)
            self._reference = reference
            # Collections before and after each run then look at that run's objects only.
            gc.collect()
            gc.freeze()
        return self._loaded

    def _probe(self, loaded: LoadedModel, batch: int) -> ChosenCriterion | None:
        model = host_copy(loaded.model).train().cuda()
        # Dropout in them would leave cuDNN's random states for the run to find.
        for module in model.modules():
            if isinstance(module, nn.RNNBase):
                module.eval()
        with torch.no_grad():
            output = call(model, make_inputs(loaded.inputs, batch, "cuda", None, False))
        return choose_criterion(output, batch)

    def run(self, case: Case, stacks: bool) -> dict[str, Any]:
        """Run one case from a clean allocator and describe what it did."""
        torch.backends.cudnn.enabled = case.cudnn
        torch.backends.cudnn.benchmark = case.cudnn_benchmark
        loaded = self._load(case.model, case.batch)
        model = prepare_on_host(host_copy(loaded.model), case.config)
        if case.regions:
            caches_left_out(model)
            apply_regions(model, dict(case.regions))
        _seed()
        if clean() != 0:
            raise RuntimeError(f"{torch.cuda.memory_reserved()} bytes stay reserved before the run")
        started = time.perf_counter()
        torch.cuda.reset_peak_memory_stats()
        context = "all" if stacks else None
        torch.cuda.memory._record_memory_history(
            "all", context=context, stacks="all" if stacks else "python", max_entries=_HISTORY_ENTRIES
        )
        marks: list[tuple[str, int]] = []
        before = _calls()

        def mark(name: str) -> None:
            marks.append((name, _calls() - before))

        try:
            self._loop(model.cuda(), loaded, case, mark)
            stats = torch.cuda.memory_stats()
            trace = torch.cuda.memory._snapshot()["device_traces"][0]
        finally:
            torch.cuda.memory._record_memory_history(None)
        events, labels = _normalised(trace, stacks)
        return {
            "events": events,
            "marks": marks,
            "labels": labels,
            "requested_peak_bytes": stats["requested_bytes.all.peak"],
            "allocated_peak_bytes": stats["allocated_bytes.all.peak"],
            "reserved_peak_bytes": stats["reserved_bytes.all.peak"],
            "retries": stats["num_alloc_retries"],
            "criterion": "" if self._criterion is None else self._criterion.description,
            "seconds": time.perf_counter() - started,
        }

    def _loop(self, model: nn.Module, loaded: LoadedModel, case: Case, mark: Any) -> None:
        config: LoopConfig = case.config
        criterion = self._criterion

        def next_batch() -> tuple[Any, Any]:
            float_dtype = PURE_DTYPES.get(config.precision)
            inputs = make_inputs(loaded.inputs, case.batch, "cuda", float_dtype, config.channels_last)
            if config.mode == "infer" or criterion is None or criterion.target is None:
                return inputs, None
            return inputs, make_inputs(criterion.target, case.batch, "cuda", None, False)

        with matmul_precision(config):
            if config.mode == "infer":
                infer(model, next_batch, config, mark)
                return
            if criterion is None:
                raise RuntimeError("no criterion fits the output")
            make_optimizer, _ = optimizer_factory(case.optimizer_call(), one_by_one=config.step_in_backward)
            parameters = [p for p in model.parameters() if p.requires_grad]
            if config.step_in_backward:
                optimizers_in_backward(make_optimizer, parameters)
                train(model, None, next_batch, criterion.function, config, mark)
                return
            optimizer = make_optimizer(parameters)
            train(model, optimizer, next_batch, criterion.function, config, mark)


def _seed() -> None:
    """The seeds of gpumem's traces (`gpumem.extraction.caller.random_state_kept`): same layer drop and masks."""
    random.seed(0)
    torch.default_generator.manual_seed(0)
    numpy.random.seed(0)


def _calls() -> int:
    """Allocations plus frees so far: the position in the event list, without an allocating marker."""
    counts = torch._C._cuda_memoryStats(torch.cuda.current_device())["allocation"]["all"]
    return int(counts["allocated"] + counts["freed"])


def _normalised(trace: list[dict[str, Any]], stacks: bool) -> tuple[list[int], list[str]]:
    events: list[int] = []
    labels: list[str] = []
    index_at: dict[int, int] = {}
    count = 0
    for entry in trace:
        if entry["action"] == "alloc":
            index_at[entry["addr"]] = count
            count += 1
            events.append(entry["size"])
            if stacks:
                labels.append(_frames(entry.get("frames", [])))
        elif entry["action"] == "free_requested":
            events.append(-1 - index_at.pop(entry["addr"]))
    return events, labels


def _frames(frames: list[dict[str, Any]]) -> str:
    cpp = [f["name"].split("(")[0][-80:] for f in frames if "at::" in f["name"] or "torch::autograd" in f["name"]]
    cpp = [name for name in cpp if not any(glue in name for glue in _GLUE)]
    python = [f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in frames if f["filename"].endswith(".py")]
    return " < ".join(cpp[:6]) + " | " + " < ".join(python[:3])


def main() -> None:
    """Serve until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    torch.set_num_threads(1)
    torch.zeros(1, device="cuda")
    answers.write("ready\n")
    answers.flush()
    child = Child()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = child.run(Case.from_json(request["case"]), request["stacks"])
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:400]}\n{traceback.format_exc()[-1500:]}"}
            traceback.clear_frames(error.__traceback__)
        if clean() != 0:
            answer["unclean"] = True
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
