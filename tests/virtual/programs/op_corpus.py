"""Runs operations one after the other and says what came of each.

    python op_corpus.py OUT FIRST SAMPLES [NAME ...]

The operations are PyTorch's own list (`op_db`, each with some of its sample inputs, in several types, with backward
passes) and those of `*_ops.py`. OUT gets a line of JSON before and after each; FIRST is the number of the first,
SAMPLES the most samples of one operation in one type. With names, only those operations.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import device_ops  # noqa: F401
import layer_ops  # noqa: F401
import math_ops  # noqa: F401
import op_cases
import torch

from gpumem.virtual.control import Control

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.bool)
"""Of those that an operation takes, all are tried."""

Case = tuple[str, Callable[[], int]]
"""A name, and what runs it and returns the number of samples."""


def _run_samples(info: Any, dtype: torch.dtype, most: int) -> int:
    """Forward, and backward where the type has gradients."""
    differentiable = dtype in info.supported_backward_dtypes("cuda") and info.supports_autograd
    count = 0
    for sample in islice(info.sample_inputs("cuda", dtype, requires_grad=differentiable), most):
        result = info(sample.input, *sample.args, **sample.kwargs)
        if differentiable:
            _backward(sample.output_process_fn_grad(result))
        count += 1
    torch.cuda.synchronize()
    return count


def _backward(result: Any) -> None:
    outputs = [result] if isinstance(result, torch.Tensor) else list(result) if isinstance(result, tuple | list) else []
    roots = [output for output in outputs if isinstance(output, torch.Tensor) and output.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


def cases(most: int, names: list[str]) -> Iterator[Case]:
    """Everything there is to run, and what has to be named."""
    wanted = {name: function for name, function in op_cases.WHEN_NAMED.items() if name in names}
    for name, function in (wanted | op_cases.CASES).items():
        yield name, _counted(function)
    if names and all(name.startswith("more:") for name in names):
        return
    # It takes ten seconds to import.
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        supported = info.supported_dtypes("cuda")
        for dtype in TYPES:
            if dtype in supported:
                name = f"{info.name}{f'.{info.variant_test_name}' if info.variant_test_name else ''}"
                yield f"{name} {str(dtype).removeprefix('torch.')}", _sampled(info, dtype, most)


def _counted(function: Callable[[], object]) -> Callable[[], int]:
    def run() -> int:
        function()
        torch.cuda.synchronize()
        return 1

    return run


def _sampled(info: Any, dtype: torch.dtype, most: int) -> Callable[[], int]:
    return lambda: _run_samples(info, dtype, most)


def _write(file: TextIO, **line: object) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


def _attempt(run: Callable[[], int]) -> dict[str, object]:
    try:
        return {"state": "ok", "samples": run()}
    except Exception as error:
        lines = str(error).strip().splitlines()
        # What OpInfo says about a sample comes first; the reason is underneath.
        reason = error.__cause__ or error
        said = str(reason).strip().splitlines() or lines or [""]
        return {"state": "error", "kind": type(reason).__name__, "message": said[0]}


def main() -> None:
    out, first, most, *names = sys.argv[1:]
    control = Control()
    with Path(out).open("a", encoding="utf-8") as file:
        for number, (name, run) in enumerate(cases(int(most), names)):
            if number < int(first) or (names and name.split()[0] not in names):
                continue
            refused = control.unsupported()
            _write(file, number=number, name=name, state="begun")
            outcome = _attempt(run)
            new = sorted(symbol for symbol, count in control.unsupported().items() if count > refused.get(symbol, 0))
            _write(file, number=number, name=name, refused=new, **outcome)
        _write(file, number=-1, name="", state="end")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
