"""What is asked of ATen overloads by name and schema."""

from __future__ import annotations

from typing import Any

import torch


def overload(name: str, overload_name: str = "default") -> Any:
    """`torch.ops.aten.<name>.<overload_name>`; where this torch has no such op, its name: a key that nothing calls."""
    return getattr(getattr(torch.ops.aten, name, None), overload_name, f"aten.{name}.{overload_name}")


def cannot_allocate(func: Any) -> bool:
    """Whether the schema of this overload leaves nothing to compare: views (also in place) and profiler ranges."""
    if func.namespace == "profiler":
        return True
    if torch.Tag.inplace_view in func.tags:
        return not func.__name__.startswith(("resize_", "resize_as_"))
    # Composite functions such as `contiguous` are typed as views and may copy.
    return bool(func.is_view) and not func.has_kernel_for_dispatch_key("CompositeImplicitAutograd")
