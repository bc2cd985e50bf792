"""Our side of a case: `gpumem.extract`, then the core's timeline and simulated allocator at the case's batch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import torch

from gpumem import ModelSpec
from gpumem.extraction import extract as extract_spec
from gpumem.extraction.recorder import PHASES
from tests.parity.case import Case
from tests.parity.models import LoadedModel
from tests.parity.timeline import Timeline

_REQUEST, _FREE, _MARK = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What gpumem says about a case.

    Attributes:
        timeline: Events and phase borders; labels are op and layer.
        requested_peak_bytes: Peak of live requested bytes.
        allocated_peak_bytes: From the simulated allocator.
        reserved_peak_bytes: From the simulated allocator.
        ops: ATen overloads that ran.
        traced_batches: Batch sizes of the traces behind it.
    """

    timeline: Timeline
    requested_peak_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    ops: tuple[str, ...]
    traced_batches: tuple[int, ...]


@contextlib.contextmanager
def _cudnn(enabled: bool) -> Iterator[None]:
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = enabled
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


def extract(case: Case, loaded: LoadedModel, batches: Sequence[int] = (2, 3, 5)) -> ModelSpec:
    """The spec of the case's loop.

    Raises:
        gpumem.GpumemError: as `gpumem.extract`; `BatchDependentError` when it answers only for traced sizes.
    """
    config = case.config
    with _cudnn(case.cudnn):
        return extract_spec(
            loaded.model,
            loaded.inputs,
            mode=config.mode,
            precision=config.precision,
            optimizer=case.optimizer_call(),
            channels_last=config.channels_last,
            zero_grad=config.zero_grad,
            accumulate=config.accumulate,
            clip_grad_norm=config.clip_grad_norm,
            step_in_backward=config.step_in_backward,
            gpu=case.profile,
            batches=tuple(batches),
            host_reads="zeros",
        )


def predict(case: Case, spec: ModelSpec) -> Prediction:
    """Timeline and peaks of the first `case.config.steps` steps."""
    rows = spec.timeline(
        case.batch,
        gpu=case.profile,
        library_workspaces=case.workspaces == "real",
        cudnn_benchmark=case.cudnn_benchmark,
    )
    ops, layers = spec.ops, spec.layer_paths
    timeline = Timeline([], [])
    requested = allocated = reserved = steps = 0
    index_of: dict[int, int] = {}
    for kind, number, size_bytes, op, layer, phase, live_requested, live_allocated, live_reserved in rows:
        if kind == _MARK:
            if PHASES[number] != "setup":
                timeline.marks.append((PHASES[number], len(timeline.events)))
            if PHASES[number] == "end":
                steps += 1
                if steps == case.config.steps:
                    break
        elif kind == _REQUEST:
            index_of[number] = len(index_of)
            timeline.events.append(size_bytes)
            timeline.labels.append(f"{ops[op]} @ {layers[layer] or '(model)'} [{PHASES[phase]}]")
        elif kind == _FREE:
            timeline.events.append(-1 - index_of[number])
        requested, allocated = max(requested, live_requested), max(allocated, live_allocated)
        reserved = max(reserved, live_reserved)
    return Prediction(timeline, requested, allocated, reserved, tuple(ops), tuple(spec.traced_batches))
