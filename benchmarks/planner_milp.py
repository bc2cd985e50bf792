"""PyTorch's SAC MILP: its statistics, its answers, a model with an answer applied, and our plan in the same bytes."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from benchmarks.planner_cases import GPU, Case, on_meta
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import runtime_estimator, sac_ilp
from torch.distributed._tools.ilp_utils import aggregate_stats, parse_module_info
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed._tools.sac_estimator import SACEstimator, SACStats
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.testing._internal.composite_compliance import is_inplace_view_fn, is_view_fn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from gpumem import ModelSpec
from gpumem._core import RegionSpace
from gpumem.errors import GpumemError
from gpumem.extraction.keywords import loop_keywords
from gpumem.extraction.region_space import RegionTracer

# An A100's bytes and TF32 operations per nanosecond (its data sheet): the estimator asks a GPU for them otherwise.
_BYTES_PER_NS = 2039
_OPS_PER_NS = 156_000
_GIB = 1 << 30
_ENOUGH_BYTES = 1 << 50
# More than any rounding.
_EQUAL = 1e-9
# What an operator is called depends on the device for these; the statistics are from the CPU.
_DEVICES_OWN = ("_scaled_dot_product", "batch_norm")


def _transfer_ns(inputs: list[Any], outputs: list[Any], **_: Any) -> float:
    tensors = [item for item in (*inputs, *outputs) if isinstance(item, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / _BYTES_PER_NS


def _compute_ns(func: Any, args: Any, kwargs: Any, out: Any, *_: Any, **__: Any) -> float:
    count = flop_registry.get(func)
    return count(*args, **kwargs, out_val=out) / _OPS_PER_NS if count else 0.0


def _on_cpu(model: nn.Module) -> nn.Module:
    """The same module with tensors of the CPU; tied ones stay tied."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in made:
                    new = torch.empty_like(tensor, device="cpu")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = tensor, nn.Parameter(new, tensor.requires_grad) if is_parameter else new
                if tensor is not None:
                    tensors[name] = made[id(tensor)][1]  # type: ignore[assignment]
    return model


@dataclass(frozen=True)
class MilpAnswer:
    """What the MILP said for one budget.

    Attributes:
        share: Budget as a share of the tracked peak.
        seconds: Time of the solver.
        discarded: Modules it checkpoints to the share of their bytes that it discards, None when it found nothing.
    """

    share: float
    seconds: float
    discarded: Mapping[str, float] | None


class Milp:
    """`torch.distributed._tools.sac_ilp.sac_milp` on a model.

    Args:
        make: Builds the model on the meta device: fake tensors have no values to initialise by.
        inputs: Makes what it is called with; its result has a `loss`.
        cap_seconds: Limit of the solver, in place of its 180 s.
    """

    def __init__(self, make: Callable[[], nn.Module], inputs: Callable[[], dict[str, Any]], cap_seconds: int) -> None:
        start = time.perf_counter()
        # Fake tensors on the CPU: on a fake CUDA device the backward pass needs a GPU.
        runtime_estimator.get_transfer_time = _transfer_ns
        runtime_estimator.get_compute_time = _compute_ns
        torch.accelerator.is_available = lambda: True
        with FakeTensorMode():
            model = _on_cpu(make())
            optimizer = torch.optim.AdamW(model.parameters())
            batch = inputs()
            tracker, runtime, sac = MemTracker(), RuntimeEstimator(), SACEstimator()
            tracker.track_external(model, optimizer)
            with tracker:
                for step in range(2):
                    model(**batch).loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    if step == 0:
                        tracker.reset_mod_stats()
            for estimator in (runtime, sac):
                with estimator("operator-level-cost-model"):
                    model(**batch).loss.backward()
            info = aggregate_stats(model, tracker, runtime, sac, torch.device("cpu"))
        self._graph = parse_module_info(info)
        self._stats: dict[str, SACStats] = sac.sac_mod_stats
        self._policies: dict[tuple[str | float, ...], list[tuple[str, bool]]] = {}
        self.modules = len(self._graph.nodes)
        self._peak_gib = max(part["Total"] for part in tracker.get_tracker_snapshot("peak").values()) / _GIB
        self._cap_seconds = cap_seconds
        self.stats_seconds = time.perf_counter() - start

    def solve(self, share: float) -> MilpAnswer:
        """Plan for a share of the peak."""
        original = sac_ilp.PULP_CBC_CMD
        sac_ilp.PULP_CBC_CMD = lambda **options: original(**{**options, "timeLimit": self._cap_seconds})
        start = time.perf_counter()
        try:
            decisions, _, peak = sac_ilp.sac_milp(self._graph, memory_budget=share * self._peak_gib)
        finally:
            sac_ilp.PULP_CBC_CMD = original
        # It answers -1 bytes when it found nothing.
        return MilpAnswer(share, time.perf_counter() - start, decisions if peak >= 0 else None)

    def applied(self, model: nn.Module, answer: MilpAnswer) -> nn.Module:
        """A copy of the model with an answer's modules wrapped; which outputs to keep is PyTorch's own choice."""
        wrapped = copy.deepcopy(model)
        for name, share in (answer.discarded or {}).items():
            contexts = functools.partial(_contexts, self._policy(self._stats[name], share))
            # The estimator's names begin with the class of the model.
            _, _, path = name.partition(".")
            parent, _, child = path.rpartition(".")
            module = checkpoint_wrapper(wrapped.get_submodule(path), context_fn=contexts)
            setattr(wrapped.get_submodule(parent), child, module)
        return wrapped

    def _policy(self, stats: SACStats, share: float) -> list[tuple[str, bool]]:
        """Every operator of a module but views, and whether its output is kept; equal modules are asked about once."""
        key = (*stats.func_names, *stats.memory, share)
        if key not in self._policies:
            kept = sac_ilp.get_optimal_checkpointing_policy_per_module(stats, 1 - share)
            operators = enumerate(zip(stats.func_names, map(bool, kept), strict=True))
            self._policies[key] = [operator for number, operator in operators if number not in stats.view_like_ops]
        return self._policies[key]


def _contexts(operators: list[tuple[str, bool]]) -> Any:
    return create_selective_checkpoint_contexts(_Policy(operators))


class _Policy:
    """Goes through the operators of one call of a module, and once more when it is run again."""

    def __init__(self, operators: list[tuple[str, bool]]) -> None:
        self._operators = operators
        self._next = {False: 0, True: 0}

    def __call__(self, context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if is_view_fn(operator) or is_inplace_view_fn(operator):
            # A view holds nothing, and the CPU, whose statistics these are, makes other ones.
            return CheckpointPolicy.PREFER_RECOMPUTE
        name, kept = self._operators[self._next[context.is_recompute]]
        self._next[context.is_recompute] += 1
        found = operator._overloadpacket.__name__
        if found != name and not any(part in found and part in name for part in _DEVICES_OWN):
            raise RuntimeError(f"the model runs {found} where the MILP's statistics have {name}")
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


@dataclass(frozen=True)
class _Rival:
    """A model that both plan for; its loop is in TF32 with AdamW, since the estimators know no autocast."""

    name: str
    make: Callable[[], nn.Module]
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]
    batch: int

    def case(self) -> Case:
        """For us: no weights, shapes of a sample."""
        return Case(self.name, on_meta(self.make), self.shapes, self.batch, {"precision": "tf32", "optimizer": "adamw"})

    def inputs(self) -> dict[str, Any]:
        """For the MILP: a batch."""
        return {name: torch.zeros(self.batch, *shape, dtype=dtype) for name, (shape, dtype) in self.shapes.items()}


def _gpt2(layers: int) -> _Rival:
    # Without dropout: with it the CPU's attention is another algorithm, and the statistics are of that.
    config = transformers.GPT2Config(n_layer=layers, use_cache=False, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    shapes = dict.fromkeys(("input_ids", "labels"), ((512,), torch.int64))
    return _Rival(f"GPT-2, {layers} layers", lambda: transformers.GPT2LMHeadModel(config).train(), shapes, 8)


RIVALS = (_gpt2(12), _gpt2(24))
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
CAP_SECONDS = 30
TEXT = f"""`torch.distributed._tools.sac_ilp.sac_milp` (CBC, its 5 % gap) on statistics by its own estimators from fake
tensors on the CPU (TF32's speed, dropout off); its limit of 180 s was set to {CAP_SECONDS} s. Budgets are shares of the
peak that MemTracker gives. Its answer is applied (`checkpoint_wrapper`, with the operators that PyTorch's
`get_optimal_checkpointing_policy_per_module` chooses), traced and played; then our planner is asked for the same device
bytes. Recomputation in percent of the step, one cost model; `worse`: it finished in time and recomputes less.
On ViT-B/16 and ResNet-50 its estimators raise errors."""
HEAD = "| model | modules | budget | solver | checkpointed | GiB, played | MILP | ours | |"


def rows(rival: _Rival) -> Iterator[str]:
    """Rows of one model's table."""
    case, batch = rival.case(), rival.batch
    planned, model, milp = case.planned(), case.make(), Milp(case.make, rival.inputs, CAP_SECONDS)
    plain_seconds = _look(case, model)[1]
    for share in SHARES:
        answer = milp.solve(share)
        in_time = answer.seconds < CAP_SECONDS
        start = (
            f"| {rival.name} | {milp.modules} | {share:.0%} | {answer.seconds:.2f} s{'' if in_time else ', cut off'} |"
        )
        if answer.discarded is None:
            yield f"{start} nothing found | - | - | - | |"
            continue
        start += f" {len(answer.discarded)} modules |"
        try:
            spec, seconds = _look(case, milp.applied(model, answer))
        except GpumemError as error:
            yield f"{start} - | {error.message.rpartition(': ')[2]} | - | |"
            continue
        budget = spec.estimate(batch, **GPU).device_peak.high
        ours = planned.cheapest(batch, {**GPU, "budget": budget})
        theirs_share = seconds / plain_seconds - 1
        ours_share = math.inf if ours is None else ours.recompute_seconds / ours.step_seconds
        worse = "**worse**" if in_time and ours_share > theirs_share + _EQUAL else ""
        yield f"{start} {budget / _GIB:.2f} | {100 * theirs_share:.2f} | {100 * ours_share:.2f} | {worse} |"


def _look(case: Case, model: nn.Module) -> tuple[ModelSpec, float]:
    """A model's loop as it runs, and its least seconds."""
    tracer = RegionTracer(model, case.input, **loop_keywords(case.loop))
    space = RegionSpace.from_traces([], [tracer.variant([], {}, (case.batch,))])
    found = space.cheapest_plan(case.batch, gpu=GPU["gpu"], budget=_ENOUGH_BYTES)
    assert found is not None
    return tracer.spec({}, case.batch), found[1] / 1e12
