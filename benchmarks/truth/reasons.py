"""Why rows miss: written after looking at each, shown beside it in the tables."""

from __future__ import annotations

MEASURED_REASONS: dict[str, str] = {}
"""By id of `measured.csv`: rows off by more than 5 %."""

BRACKET_REASONS: dict[str, str] = {}
"""By model of `timm_train_brackets.csv`: rows that miss."""
