"""How a region is called: keywords, containers, hooks, modes; each as without a plan."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from gpumem.checkpointing import apply_regions, code
from gpumem.checkpointing.options import CHECKPOINT, REENTRANT
from gpumem.errors import RegionError
from tests.checkpointing.compare import AVAILABLE, differences, effect, saved_bytes, step


class _Wrapper(nn.Module):
    """A region `body` between two layers, called by a function of it."""

    def __init__(self, body: nn.Module, call: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.before, self.body, self.after = nn.Linear(4, 4), body, nn.Linear(4, 4)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.call(self.body, self.before(x)))  # type: ignore[no-any-return]


@dataclass
class _Pair:
    first: torch.Tensor
    second: torch.Tensor


class _Body(nn.Module):
    def __init__(self, result: Callable[..., Any]) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.result = result

    def forward(
        self, x: torch.Tensor, scale: Any = 1, *, use_reentrant: Any = None, preserve_rng_state: Any = 1
    ) -> Any:
        x = torch.tanh(self.one(x)) * scale
        if use_reentrant is not None:
            x = x + use_reentrant
        return self.result(x, self.two(x) * preserve_rng_state)


CALLS: dict[str, tuple[Callable[..., Any], Callable[[nn.Module, torch.Tensor], Any]]] = {
    "tuple": (lambda a, b: (a, b), lambda body, x: sum(body(x))),
    "nested": (lambda a, b: {"a": [a, (b, 7)], "c": None}, lambda body, x: body(x)["a"][0] * body(x)["a"][1][0]),
    "integer": (lambda a, b: (a, 3, b > 0), lambda body, x: body(x)[0] * body(x)[2]),
    "positional number": (lambda a, b: a + b, lambda body, x: body(x, 0.5)),
    "keywords": (lambda a, b: a + b, lambda body, x: body(x=x, scale=x.exp())),
    "keywords of checkpoint": (
        lambda a, b: a + b,
        lambda body, x: body(x, use_reentrant=x.sin(), preserve_rng_state=x.cos()),
    ),
    "one tensor twice": (lambda a, b: a + b, lambda body, x: body(x, x)),
    "an input returned": (lambda a, b: a + b, lambda body, x: body(x) + body(body(x))),
}


@pytest.mark.parametrize("option", AVAILABLE)
@pytest.mark.parametrize("name", CALLS)
def test_arguments_and_results(name: str, option: str) -> None:
    result, call = CALLS[name]
    assert effect(lambda: _Wrapper(_Body(result), call), (torch.randn(3, 4),), {"body": option}) == []


@pytest.mark.parametrize("option", [option for option in AVAILABLE if option != REENTRANT])
def test_dataclasses(option: str) -> None:
    make = lambda: _Wrapper(_Body(_Pair), lambda body, x: body(x).first * body(x).second)  # noqa: E731
    assert effect(make, (torch.randn(3, 4),), {"body": option}) == []


class _Collecting(nn.Module):
    """Leaves a result in a list and in a dict that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, seen: list[torch.Tensor], named: dict[str, torch.Tensor]) -> torch.Tensor:
        x = torch.tanh(self.one(x)) * len(seen) + named["x"]
        seen.append(x.exp())
        named["x"] = x.sin()
        return self.two(x)  # type: ignore[no-any-return]


def _collected(body: nn.Module, x: torch.Tensor) -> torch.Tensor:
    seen, named = [x], {"x": x}
    out: torch.Tensor = body(body(x, seen, named), seen, named)
    seen.append(x.cos())
    return out + torch.stack(seen).sum(0) * named["x"]


@pytest.mark.parametrize("option", [option for option in AVAILABLE if option != REENTRANT])
def test_what_a_region_leaves_in_its_arguments_is_there(option: str) -> None:
    assert effect(lambda: _Wrapper(_Collecting(), _collected), (torch.randn(3, 4),), {"body": option}) == []


@pytest.mark.parametrize("option", [option for option in AVAILABLE if option != REENTRANT])
def test_the_snippet_leaves_it_there_too(option: str) -> None:
    torch.manual_seed(0)
    model = _Wrapper(_Collecting(), _collected).train()
    edited = copy.deepcopy(model)
    exec(code({"body": option}), {"model": edited})
    inputs = (torch.randn(3, 4),)
    assert differences(step(model, inputs), step(edited, inputs)) == []


def test_reentrant_regions_refuse_what_would_lose_gradients() -> None:
    model = _Wrapper(_Body(_Pair), lambda body, x: body(x).first)
    with (
        apply_regions(model, {"body": REENTRANT}),
        pytest.raises(RegionError, match="region 'body' is reentrant and returned tensors inside a _Pair"),
    ):
        model(torch.randn(3, 4))
    given = _Wrapper(_Body(lambda a, b: a), lambda body, x: body(x, scale=_Pair(x, x)))
    with (
        apply_regions(given, {"body": REENTRANT}),
        pytest.raises(RegionError, match="was given tensors inside a _Pair"),
    ):
        given(torch.randn(3, 4))


@pytest.mark.parametrize("option", AVAILABLE)
def test_a_first_region_whose_input_needs_no_gradient(option: str) -> None:
    make = lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2))  # noqa: E731
    assert effect(make, (torch.randn(3, 4),), {"0": option}) == []


@pytest.mark.parametrize("option", AVAILABLE)
def test_a_frozen_region_at_the_start_stays_without_graph(option: str) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    seen = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.requires_grad))
    with apply_regions(model, {"0": option}):
        step(model, (torch.randn(3, 4),))
    assert seen == [False]


@pytest.mark.parametrize("option", AVAILABLE)
def test_hooks_of_the_region_run_once_and_in_order(option: str) -> None:
    body = _Body(lambda a, b: a + b)
    model = _Wrapper(body, lambda module, x: module(x))
    log: list[str] = []

    def note(word: str) -> Callable[..., None]:
        return lambda *ignored: log.append(word)

    body.register_forward_pre_hook(note("pre 1"))
    body.register_forward_pre_hook(note("pre 2"))
    body.register_forward_hook(note("post 1"))
    body.register_full_backward_pre_hook(note("backward pre"))
    body.register_full_backward_hook(note("backward"))
    body.one.register_forward_hook(note("inner"))
    step(model, (torch.randn(3, 4),))
    expected = list(log)
    log.clear()
    with apply_regions(model, {"body": option}):
        step(model, (torch.randn(3, 4),))
    # Once more where the region is run again.
    assert log.count("inner") == 2
    log.remove("inner")
    assert sorted(log) == sorted(expected)
    assert [word for word in log if "p" in word] == [word for word in expected if "p" in word]


@pytest.mark.parametrize("option", AVAILABLE)
def test_hooks_that_change_what_goes_in_and_out(option: str) -> None:
    def make() -> nn.Module:
        body = _Body(lambda a, b: a + b)
        body.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        body.register_forward_hook(lambda module, args, out: out.sin())
        body.one.register_forward_hook(lambda module, args, out: out.cos())
        return _Wrapper(body, lambda module, x: module(x))

    assert effect(make, (torch.randn(3, 4),), {"body": option}) == []


@pytest.mark.parametrize("option", AVAILABLE)
@pytest.mark.parametrize("mode", ["eval", "no_grad", "inference"])
def test_outside_training_a_region_runs_as_it_is(option: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("checkpointed")

    model = _Wrapper(_Body(lambda a, b: a + b), lambda body, x: body(x))
    x = torch.randn(3, 4)
    model.train(mode != "eval")
    expected, saved = model(x), saved_bytes(model, (x,))
    monkeypatch.setattr("gpumem.checkpointing.recompute.checkpoint", never)
    contexts = {"eval": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
    with apply_regions(model, {"body": option}):
        with contexts[mode]():
            assert torch.equal(model(x), expected)
        if mode == "eval":
            assert saved_bytes(model, (x,)) == saved
        model.train()
        with pytest.raises(AssertionError, match="checkpointed"):
            model(x)


def test_a_region_that_is_run_backward_twice() -> None:
    model, x = _Wrapper(_Body(lambda a, b: a + b), lambda body, x: body(x)), torch.randn(3, 4)
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with apply_regions(model, {"body": CHECKPOINT}):
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    got = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(got) == len(expected) == 8
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("option", AVAILABLE)
def test_compiled_with_a_plan(option: str) -> None:
    model, x = _Wrapper(_Body(lambda a, b: a + b), lambda body, x: body(x)), torch.randn(3, 4)
    torch._dynamo.reset()
    expected = step(model, (x,))
    with apply_regions(model, {"body": option}):
        compiled: Any = torch.compile(model, backend="aot_eager")
        got = step(compiled, (x,))
    torch._dynamo.reset()
    assert all(torch.equal(got.gradients[f"_orig_mod.{name}"], expected.gradients[name]) for name in expected.gradients)
