"""`op:` nets of one op each; the tables are in the files `ops_*.py` by family."""

from __future__ import annotations

from gpumem.extraction.inputs import parse_input
from tests.parity.models import (
    ops_attention,
    ops_indexing,
    ops_linear,
    ops_loss,
    ops_pointwise,
    ops_reduction,
    ops_spatial,
)
from tests.parity.models.base import LoadedModel
from tests.parity.models.op_net import LAYOUTS, Op, OpNet

_TABLES = (ops_pointwise, ops_reduction, ops_indexing, ops_linear, ops_loss, ops_spatial, ops_attention)


def _all() -> dict[str, Op]:
    ops: dict[str, Op] = {}
    for table in _TABLES:
        repeated = ops.keys() & table.OPS.keys()
        if repeated:
            raise ValueError(f"op names given twice: {sorted(repeated)}")
        ops |= table.OPS
    return ops


def counted(name: str) -> int:
    """Set elements per sample that the op asks the device for."""
    return ops_indexing.COUNTED.get(name, 0)


def names() -> list[str]:
    """All ops."""
    return list(_all())


def load(name: str) -> LoadedModel:
    """The net of one op."""
    op = _all()[name]
    return LoadedModel(OpNet(op), parse_input(LAYOUTS[op.layout]))
