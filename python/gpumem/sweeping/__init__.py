"""Sweeps: every combination of models, loops, batch sizes and cards in one table, exactly as `estimate` answers each."""

from gpumem.sweeping.sweep import sweep
from gpumem.sweeping.table import Sweep

__all__ = ["Sweep", "sweep"]
