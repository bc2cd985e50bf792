"""Planning: batch, precision and checkpointed regions under a budget. Built on extraction and the core's search."""

from gpumem.planning.front import Front, FrontPoint
from gpumem.planning.plan import Alternative, AppliedPlan, Plan

__all__ = ["Alternative", "AppliedPlan", "Front", "FrontPoint", "Plan"]
