"""What can be done with a region, by name; no torch here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from gpumem.errors import UnknownNameError

CHECKPOINT = "checkpoint"
"""`torch.utils.checkpoint` with `use_reentrant=False`: keep the inputs, run the region again in backward."""

REENTRANT = "reentrant"
"""`torch.utils.checkpoint` with `use_reentrant=True`: the older form, always run again to its end."""

OFFLOAD = "offload"
"""Nothing is run again: what autograd saves waits in the host's memory (`gpumem.checkpointing.offload`)."""

_ATTENTION = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
    "aten::_cudnn_attention_forward",
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
    "flex_attention",
)
_PRODUCTS = (
    "aten::mm",
    "aten::addmm",
    "aten::_addmm_activation",
    "aten::bmm",
    "aten::baddbmm",
    "aten::addbmm",
    "aten::mv",
    "aten::addmv",
    "aten::_int_mm",
    "aten::_scaled_mm",
    "aten::_grouped_mm",
    "aten::_scaled_grouped_mm",
    "aten::convolution",
)

SAVED_OPS: Mapping[str, frozenset[str]] = {
    "save:matmul": frozenset(_PRODUCTS + _ATTENTION),
    "save:attention": frozenset(_ATTENTION),
}
"""Selective options: operations whose outputs are kept; all others of the region run again in backward.

An operation that draws random numbers (attention with dropout) runs again even if it is listed: were it left out, the
random numbers of all later operations of the region would be others than in the forward pass. Modules with
`inplace=True` in such a region write to a new tensor, since a kept output must not be overwritten; in-place operations
that are no modules stay, and PyTorch refuses the backward pass where they overwrite a kept output.
"""

OPTIONS = (CHECKPOINT, REENTRANT, OFFLOAD, *SAVED_OPS)
"""Every option, the plain ones first."""


def is_selective(option: str) -> bool:
    """Whether some operations' outputs are kept."""
    return option in SAVED_OPS


def check_option(path: str, option: object) -> str:
    """Return `option`, which must be one of `OPTIONS`.

    Raises:
        UnknownNameError: it is not; the hint has the nearest.
    """
    if isinstance(option, str) and option in OPTIONS:
        return option
    raise UnknownNameError(
        f"region '{path}' asks for {option!r}, which is no checkpointing option", nearest(str(option), OPTIONS)
    )


def nearest(name: str, known: Iterable[str], most: int = 3) -> str:
    """A hint: the names most like `name`, or all of them where none is and they are few."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=most) or (known if len(known) <= 2 * most else known[:most])
    return f"nearest: {', '.join(near)}" if near else ""
