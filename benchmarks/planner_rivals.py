"""Other planners on the same question: PyTorch's SAC MILP and functorch's knapsacks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._functorch._activation_checkpointing import knapsack
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import runtime_estimator, sac_ilp
from torch.distributed._tools.ilp_utils import aggregate_stats, parse_module_info
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed._tools.sac_estimator import SACEstimator
from torch.utils.flop_counter import flop_registry

# An A100's bytes and TF32 operations per nanosecond (its data sheet): the estimator asks a GPU for them otherwise.
_BYTES_PER_NS = 2039
_OPS_PER_NS = 156_000
_GIB = 1 << 30
_GAP = 0.05


def _transfer_ns(inputs: list[Any], outputs: list[Any], **_: Any) -> float:
    tensors = [item for item in (*inputs, *outputs) if isinstance(item, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) / _BYTES_PER_NS


def _compute_ns(func: Any, args: Any, kwargs: Any, out: Any, *_: Any, **__: Any) -> float:
    count = flop_registry.get(func)
    return count(*args, **kwargs, out_val=out) / _OPS_PER_NS if count else 0.0


@dataclass(frozen=True)
class MilpAnswer:
    """What the MILP said for one budget.

    Attributes:
        share: Budget as a share of the tracked peak.
        seconds: Time of the solver.
        checkpointed: Modules it checkpoints, None when it found nothing.
    """

    share: float
    seconds: float
    checkpointed: int | None


class Milp:
    """`torch.distributed._tools.sac_ilp.sac_milp` on a model.

    Args:
        make: Builds the model.
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
            model = make()
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
            decisions, _, _ = sac_ilp.sac_milp(self._graph, memory_budget=share * self._peak_gib)
        except Exception:
            decisions = None
        finally:
            sac_ilp.PULP_CBC_CMD = original
        return MilpAnswer(share, time.perf_counter() - start, None if decisions is None else len(decisions))


@dataclass(frozen=True)
class KnapsackAnswer:
    """How one of functorch's solvers did on random instances.

    Attributes:
        solver: Its name.
        items: Items of an instance.
        over: Instances whose answer exceeds the budget.
        instances: Instances asked.
        worst_percent: The largest excess.
    """

    solver: str
    items: int
    over: int
    instances: int
    worst_percent: float


def knapsacks(item_counts: tuple[int, ...], instances: int = 10) -> list[KnapsackAnswer]:
    """functorch's solvers on random instances, weights summing to one as it passes them; budget one half."""
    answers = []
    for name in ("dp_knapsack", "dp_knapsack_sliding_hirschberg"):
        for items in item_counts:
            excess = []
            for seed in range(instances):
                draw = random.Random(seed)
                raw = [draw.random() for _ in range(items)]
                memory = [weight / sum(raw) for weight in raw]
                runtimes = [draw.random() for _ in range(items)]
                _, saved, _ = getattr(knapsack, name)(memory, runtimes, 0.5)
                excess.append(sum(memory[item] for item in saved) / 0.5 - 1)
            # Less than a rounding of doubles is none.
            over = sum(value > 1e-9 for value in excess)
            answers.append(KnapsackAnswer(name, items, over, instances, max(0.0, 100 * max(excess))))
    return answers
