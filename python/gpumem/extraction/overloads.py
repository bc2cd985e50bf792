"""ATen overloads that not every supported torch has."""

from __future__ import annotations

from typing import Any

import torch


def overload(name: str, overload_name: str = "default") -> Any:
    """`torch.ops.aten.<name>.<overload_name>`; where this torch has no such op, its name: a key that nothing calls."""
    return getattr(getattr(torch.ops.aten, name, None), overload_name, f"aten.{name}.{overload_name}")
