"""Compare gpumem with unmodified CUDA PyTorch on the virtual GPU, allocation by allocation.

Usage, from the repository root:

    PYTHONPATH=python python -m tests.parity.compare tv:resnet18 --batch 4 --precision amp-bf16 --optimizer adamw
    ... [--mode infer] [--channels-last] [--no-cudnn] [--show 12] [--steps 3] [--profile h100] [--workspaces real]
    ... [--traced 2 3 5]      the spec is traced at these sizes and asked for --batch (they should differ)

References: `tv:` `timm:` `hf:` `nn:` `unet:` `misc:` `op:` (`--list op` prints the names of a family). With `--show N`
the truth is run again with stacks and the first N differences are printed with the C++ frames that made CUDA's request
and the op and layer that made ours. `peak` = requested peak of the run; `sequence` = every allocation and every free,
the frees between two allocations as a set. Exit code 0 when the sequence is equal.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time

from gpumem import ModelSpec
from gpumem.loop import LoopConfig
from tests.parity import models, ours, virtual
from tests.parity.case import CAPABILITIES, Case
from tests.parity.difference import differences, sequences_equal


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Both sides of a case and what agrees.

    Attributes:
        truth: The virtual GPU's run.
        prediction: Ours.
        requested_equal: Requested peaks equal to the byte.
        phases_equal: Requested peak of every phase equal.
        allocations_equal: Ordered allocation sizes equal.
        sequence_equal: Frees equal too (between two allocations as a set).
        allocated_equal: Allocated peaks equal to the byte.
        reserved_equal: Reserved peaks equal to the byte.
    """

    truth: virtual.Truth
    prediction: ours.Prediction
    requested_equal: bool
    phases_equal: bool
    allocations_equal: bool
    sequence_equal: bool
    allocated_equal: bool
    reserved_equal: bool

    @property
    def off(self) -> frozenset[str]:
        """Names of what is not equal: `requested`, `allocated`, `reserved` (peaks), `sequence`."""
        equal = {
            "requested": self.requested_equal,
            "allocated": self.allocated_equal,
            "reserved": self.reserved_equal,
            "sequence": self.sequence_equal,
        }
        return frozenset(name for name, same in equal.items() if not same)


def compare(case: Case, spec: ModelSpec, *, stacks: bool = False) -> Comparison:
    """Run the case on the virtual GPU and compare it with what the spec predicts.

    Raises:
        virtual.ChildError: when the truth fails.
        gpumem.GpumemError: when the spec does not answer.
    """
    truth = virtual.run(case, stacks=stacks)
    prediction = ours.predict(case, spec)
    theirs, mine = truth.timeline.trimmed(), prediction.timeline.trimmed()
    return Comparison(
        truth=truth,
        prediction=prediction,
        requested_equal=truth.requested_peak_bytes == prediction.requested_peak_bytes,
        phases_equal=theirs.phase_peaks_bytes() == mine.phase_peaks_bytes(),
        allocations_equal=theirs.sizes() == mine.sizes(),
        sequence_equal=sequences_equal(theirs, mine),
        allocated_equal=truth.allocated_peak_bytes == prediction.allocated_peak_bytes,
        reserved_equal=truth.reserved_peak_bytes == prediction.reserved_peak_bytes,
    )


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.parity.compare", description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", help="references such as tv:resnet18")
    parser.add_argument("--list", choices=models.FAMILIES, help="print the names of a family and stop")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--traced", type=int, nargs="+", default=[2, 3, 5], help="batch sizes to trace")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--optimizer", default="sgd(momentum=0.9)")
    parser.add_argument("--mode", choices=("train", "infer"), default="train")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--zero-grad", choices=("none", "zero"), default="none")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--clip", type=float, default=None)
    parser.add_argument("--no-cudnn", action="store_true")
    parser.add_argument("--profile", choices=sorted(CAPABILITIES), default="rtx3090")
    parser.add_argument("--workspaces", choices=("stub", "real"), default="stub")
    parser.add_argument("--show", type=int, default=0, help="print that many differences, with stacks")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Compare the cases of the command line; 0 when every sequence is equal."""
    arguments = _arguments(argv)
    if arguments.list:
        print("\n".join(models.names(arguments.list)))
        return 0
    import torch

    torch.set_num_threads(1)
    worst = 0
    for reference in arguments.models:
        case = Case(
            model=reference,
            batch=arguments.batch,
            config=LoopConfig(
                mode=arguments.mode,
                precision=arguments.precision,
                channels_last=arguments.channels_last,
                zero_grad=arguments.zero_grad,
                accumulate=arguments.accumulate,
                clip_grad_norm=arguments.clip,
                steps=arguments.steps,
            ),
            optimizer=arguments.optimizer,
            cudnn=not arguments.no_cudnn,
            profile=arguments.profile,
            workspaces=arguments.workspaces,
        )
        worst = max(worst, _print(case, arguments.traced, arguments.show))
    return worst


def _print(case: Case, traced: list[int], show: int) -> int:
    started = time.perf_counter()
    try:
        spec = ours.extract(case, models.load(case.model), traced)
        extracted = time.perf_counter() - started
        result = compare(case, spec, stacks=show > 0)
    except virtual.ChildError as error:
        print(f"{case.label()}: TRUTH FAILED {error}")
        return 2
    except Exception as error:
        if show:
            raise
        print(f"{case.label()}: OURS FAILED {type(error).__name__}: {str(error)[:300]}")
        return 2
    truth, prediction = result.truth, result.prediction
    theirs, mine = truth.timeline.trimmed(), prediction.timeline.trimmed()
    words = {True: "equal", False: "OFF"}
    print(
        f"{case.label()}: sequence {words[result.sequence_equal]}, allocations {words[result.allocations_equal]} "
        f"({len(theirs.sizes())}/{len(mine.sizes())}), phases {words[result.phases_equal]}, "
        f"requested {words[result.requested_equal]} ({truth.requested_peak_bytes:,} / "
        f"{prediction.requested_peak_bytes:,}), allocated {words[result.allocated_equal]} "
        f"({truth.allocated_peak_bytes:,} / {prediction.allocated_peak_bytes:,}), "
        f"reserved {words[result.reserved_equal]} ({truth.reserved_peak_bytes:,} / "
        f"{prediction.reserved_peak_bytes:,}); loss: {truth.criterion}; extracted in {extracted:.1f} s"
    )
    if show and not result.sequence_equal:
        for text in differences(theirs, mine, show):
            print("  " + text)
    return 0 if result.sequence_equal else 1


if __name__ == "__main__":
    sys.exit(main())
