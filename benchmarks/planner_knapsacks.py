"""functorch's knapsacks on random instances."""

from __future__ import annotations

import random
from dataclasses import dataclass

from torch._functorch._activation_checkpointing import knapsack


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
