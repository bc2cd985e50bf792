"""The process on the device: runs cases that its parent names, one after the other, and writes down what happened.

`hands.Hands` starts it. Requests are lines of JSON on standard input; an answer is a line on the pipe whose number is
the first argument. The second argument is a pipe that ends when the parent does.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
from typing import Any

import torch

from gpumem.validation.device_memory import DeviceMemory, device_memory
from gpumem.validation.measured_loop import clean, measure
from gpumem.virtual.control import Control
from tests.gpu_truth.cases import Case
from tests.gpu_truth.history import UnreplayableError, events_of, pack
from tests.gpu_truth.jobs import job_of
from tests.gpu_truth.kernels import context_steps


def is_virtual() -> bool:
    """Whether the virtual GPU is loaded in this process."""
    try:
        Control()
    except RuntimeError:
        return False
    return True


def card(memory: DeviceMemory, driver: str, virtual: bool) -> dict[str, Any]:
    """What the device is, before anything ran on it."""
    properties: Any = torch.cuda.get_device_properties(0)
    total = torch.cuda.mem_get_info()[1]
    return {
        "virtual": virtual,
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "total_bytes": total,
        "driver": driver,
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "cudnn": int(torch.backends.cudnn.version() or 0),
        "python": ".".join(map(str, sys.version_info[:3])),
        "measured_by": memory.measured_by,
        "others_bytes": memory.others_bytes,
        "environment": {name: os.environ.get(name) for name in ("PYTORCH_CUDA_ALLOC_CONF", "CUDA_MODULE_LOADING")},
    }


def _history(snapshot: dict[str, Any]) -> dict[str, Any]:
    try:
        return pack(*events_of(snapshot, torch.cuda.current_device()))
    except UnreplayableError as error:
        return {"not replayable": str(error)}


def _loop(request: dict[str, Any], memory: DeviceMemory) -> dict[str, Any]:
    case = Case(**request["case"])
    job = job_of(case, request["steps"])
    torch.backends.cudnn.benchmark = case.benchmark
    try:
        measured, history = measure(
            job, case.batch, request["allowed_bytes"], memory, lambda place: None, _history if request["keep"] else len
        )
    finally:
        torch.backends.cudnn.benchmark = False
    answer: dict[str, Any] = {"measurement": measured.to_dict()}
    return {**answer, "history": history} if request["keep"] else answer


def _answer(request: dict[str, Any], memory: DeviceMemory) -> dict[str, Any]:
    try:
        answer = _loop(request, memory)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    try:
        torch.cuda.synchronize()
        answer["clean"] = clean() == 0
    except RuntimeError:
        answer["clean"] = False
    return answer


def main() -> None:
    """Answer until standard input ends."""
    faulthandler.enable()
    answers, lifeline, task = os.fdopen(int(sys.argv[1]), "w"), int(sys.argv[2]), sys.argv[3]
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer, separators=(",", ":")), file=answers, flush=True)

    if not torch.cuda.is_available():
        say({"error": f"PyTorch {torch.__version__} sees no CUDA device"})
        return
    if task == "context":
        say({"steps": context_steps(is_virtual())})
        return
    virtual = is_virtual()
    # Once in a process: what was in use before CUDA was started is looked at here.
    memory, driver = device_memory(0, virtual=virtual)
    say(card(memory, driver, virtual))
    for line in sys.stdin:
        say(_answer(json.loads(line), memory))


def _end_with_parent(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os._exit(3)


if __name__ == "__main__":
    main()
