"""`torch.backends.cudnn.benchmark`: PyTorch empties its cache after each measured convolution (the real cuDNN here)."""

from __future__ import annotations

import pytest

from gpumem.loop import LoopConfig
from tests.parity import models, ours
from tests.parity.case import Case
from tests.parity.compare import compare


@pytest.mark.usefixtures("virtual_gpu")
def test_the_cache_is_emptied_at_each_new_convolution() -> None:
    # In this setting cuDNN's plans need no workspace, so that nothing but the emptied cache can differ.
    case = Case(
        model="tv:resnet18",
        batch=16,
        config=LoopConfig(precision="amp-fp16", channels_last=True),
        optimizer="sgd(momentum=0.9)",
        workspaces="real",
        cudnn_benchmark=True,
    )
    result = compare(case, ours.extract(case, models.load(case.model), (case.batch,)))
    assert not result.off & {"allocated", "reserved"}
    without = Case(**{**vars(case), "cudnn_benchmark": False})
    spec = ours.extract(without, models.load(case.model), (case.batch,))
    assert ours.predict(without, spec).reserved_peak_bytes != result.prediction.reserved_peak_bytes
