"""Cases of `test_parity.py` that are known to differ: what differs, and by which mechanism.

A case listed here must differ in exactly what is listed; when it becomes equal, its entry has to go.
"""

from __future__ import annotations

KNOWN: dict[tuple[str, str], tuple[frozenset[str], str]] = {}
"""`(model, setting)` to what differs (names of `Comparison.off`) and why."""
