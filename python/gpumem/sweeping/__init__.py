"""Sweeps: every combination of models, loops, batch sizes and cards in one table, answered as `estimate` does."""

from gpumem.sweeping.sweep import sweep
from gpumem.sweeping.table import Sweep

__all__ = ["Sweep", "sweep"]
