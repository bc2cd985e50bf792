"""The process on the device: says what the device is, then runs jobs and answers with what it measured.

It is started by `process.Child`: requests are lines of JSON on standard input, answers are files, announced on standard
output. What the model prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from gpumem.validation.device_memory import device_memory
from gpumem.validation.job import Package
from gpumem.validation.measured_loop import clean, measure, requests
from gpumem.validation.measurement import DeviceFacts
from gpumem.virtual.counts import count_from_one

_ORPHANED = 3


def serve(on: str, index: int, virtual: bool, lifeline: int) -> None:
    """Answer until standard input ends.

    Args:
        on: How the caller calls the device.
        index: Its number for CUDA.
        virtual: Whether it is a virtual device.
        lifeline: A pipe that ends when the caller does.
    """
    threading.Thread(target=_end_with_caller, args=(lifeline,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        _say(answers, {"error": f"PyTorch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices"})
        return
    if virtual:
        count_from_one()
    memory, driver = device_memory(index, virtual=virtual)
    torch.zeros(1, device="cuda")
    clean()
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(index)
    facts = DeviceFacts(
        on=on,
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        total_bytes=total,
        others_bytes=memory.others_bytes,
        context_bytes=max(0, memory.process_bytes() - torch.cuda.memory_reserved()),
        measured_by=memory.measured_by,
        driver=driver,
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda),
        cudnn=int(torch.backends.cudnn.version() or 0),
        python=".".join(map(str, sys.version_info[:3])),
    )
    _say(answers, {"facts": vars(facts), "free_bytes": free})
    for line in sys.stdin:
        _say(answers, _run(json.loads(line), memory))


def _run(request: dict[str, Any], memory: Any) -> dict[str, Any]:
    folder = Path(request["folder"])
    place = os.open(folder / "place", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def progress(where: str) -> None:
        os.ftruncate(place, 0)
        os.pwrite(place, where.encode(), 0)

    progress("reading the model")
    try:
        package: Package = pickle.loads((folder / "job").read_bytes())
        job = package.unpack()
        measurement, sizes = measure(job, request["batch"], request["allowed_bytes"], memory, progress, requests)
        del job
        answer: dict[str, Any] = {"measurement": measurement.to_dict(), "requests": sizes or []}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    finally:
        os.close(place)
    answer["clean"] = _cleaned()
    (folder / "answer").write_text(json.dumps(answer), encoding="utf-8")
    return {"done": True}


def _cleaned() -> bool:
    """Whether the next run finds the device empty and working."""
    try:
        torch.cuda.synchronize()
        return clean() == 0
    except RuntimeError:
        return False


def _say(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _end_with_caller(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os._exit(_ORPHANED)
