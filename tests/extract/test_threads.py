"""Extraction is the business of its own thread: others train on, and several may extract."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import torch
from torch import nn

from gpumem.api import extract

EXTRACTIONS_PER_THREAD = 3


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))


def _train(model: nn.Module, data: torch.Tensor, go_on: Callable[[int], bool]) -> int:
    """Train and check on every step that nothing of a trace is visible here."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    steps = 0
    while go_on(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(data).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        assert not torch.cuda.is_available()
        assert data.device.type == "cpu"
        with torch.inference_mode():
            assert model(data).is_inference()
        model.last_loss = loss
        steps += 1
    return steps


def test_a_model_that_another_thread_trains() -> None:
    model = _model()
    twin = copy.deepcopy(model)
    expected = extract(model, (3, 8, 8))
    data = torch.randn(4, 3, 8, 8)
    stop = threading.Event()
    outcome: list[int | BaseException] = []

    def train() -> None:
        try:
            outcome.append(_train(model, data, lambda _: not stop.is_set()))
        except BaseException as error:
            outcome.append(error)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        answers = [extract(model, (3, 8, 8)) for _ in range(EXTRACTIONS_PER_THREAD)]
    finally:
        stop.set()
        trainer.join()
    (steps,) = outcome
    assert isinstance(steps, int), steps
    assert steps > 0
    assert all(answer == expected for answer in answers)
    # In a thread too: sums are split over cores otherwise than in the main thread.
    alone = threading.Thread(target=_train, args=(twin, data, lambda step: step < steps))
    alone.start()
    alone.join()
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in model.state_dict().items())


def test_several_threads_extract_at_once() -> None:
    questions = [{"precision": "fp32"}, {"precision": "amp-fp16"}, {"mode": "infer"}]
    model = _model()
    expected = [extract(model, (3, 8, 8), **question) for question in questions]
    answers: list[list[object]] = [[] for _ in questions]

    def ask(index: int) -> None:
        for _ in range(EXTRACTIONS_PER_THREAD):
            answers[index].append(extract(model, (3, 8, 8), **questions[index]))

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[answer] * EXTRACTIONS_PER_THREAD for answer in expected]
