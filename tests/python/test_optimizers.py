"""Optimizers are found and counted without being named to `wrap()` (memscale/model/optimizers.py)."""

from __future__ import annotations

import gc
import importlib
import json
import textwrap
from functools import partial
from typing import Any

import pytest
import torch
from forked_python import run_python
from process_support import environment_of_tests
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import memscale
from memscale.model.optimizers import made_state_bytes, optimizers_of, to_trace
from memscale.optim import AdamW

ELEMENTS = 4 * (64 * 64 + 64)


def _model() -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])


def _state_bytes(model: nn.Module) -> int:
    graph = json.loads(memscale.trace(model, torch.randn(8, 64)).to_json())
    return int(graph["loop"]["optimizer_state_bytes"])


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


class PassesOn(torch.optim.Optimizer):
    """As trainers' optimizers: another one's groups and steps under its own name."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, inner.defaults

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise AssertionError("somebody else's step ran in a trace")


class Theirs(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise AssertionError("somebody else's step ran in a trace")


def test_only_optimizers_of_the_model_are_found() -> None:
    model, other = _model(), _model()
    ours = torch.optim.SGD(model.parameters())
    theirs = torch.optim.SGD(other.parameters())
    assert optimizers_of(model) == [ours] and optimizers_of(other) == [theirs]
    outer = PassesOn(ours)
    assert optimizers_of(model) == [ours]
    assert outer.param_groups is ours.param_groups


def test_an_optimizer_that_is_gone_is_not_found() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters())
    del optimizer
    gc.collect()
    assert optimizers_of(model) == []


def test_state_before_any_step_is_that_of_the_optimizer() -> None:
    assumed = _state_bytes(_model())
    assert assumed == 8 * ELEMENTS
    for make, expected in (
        (lambda p: torch.optim.SGD(p), 0),
        (lambda p: torch.optim.SGD(p, momentum=0.9), 4 * ELEMENTS),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 12 * ELEMENTS),
        (lambda p: torch.optim.AdamW(p), assumed),
        (lambda p: Theirs(list(p)), assumed),
    ):
        model = _model()
        optimizer = make(model.parameters())
        assert expected <= _state_bytes(model) <= expected + 64, optimizer
        assert not optimizer.state


def _loop(model: nn.Module) -> dict[str, Any]:
    weight = next(model.parameters())
    rows = torch.randn(8, weight.shape[1], dtype=weight.dtype)
    return dict(json.loads(memscale.trace(model, rows).to_json())["loop"])


@pytest.mark.parametrize(
    ("make", "bytes_per_element"),
    [(torch.optim.AdamW, 4), (torch.optim.Adam, 4), (AdamW, 10), (partial(AdamW, bf16="master"), 12)],
)
def test_state_of_bf16_parameters_is_that_of_the_optimizer(make: Any, bytes_per_element: int) -> None:
    model = _model().to(torch.bfloat16)
    optimizer = make(model.parameters())
    expected = bytes_per_element * ELEMENTS
    assert expected <= _loop(model)["optimizer_state_bytes"] <= expected + 64
    assert not optimizer.state


def _large_model() -> nn.Sequential:
    """Its weights' state may be on disk; that of the biases is too small for it."""
    return nn.Sequential(*[nn.Linear(512, 512) for _ in range(2)])


def test_what_the_user_chose_for_an_optimizer_of_memscale_is_counted() -> None:
    """A budget that it makes possible was refused, because the state was counted in memory."""
    model = _large_model()
    kept = AdamW(model.parameters())
    loop = _loop(model)
    assert loop["optimizer_state_bytes"] == 2 * 8 * (512 * 512 + 512)
    assert not loop.keys() & {"state_streamed", "gradients_released"}
    assert "optimizer_stream_bytes" not in loop  # no plan may move it: wrap() is not given the optimizer
    del kept
    gc.collect()
    moved = AdamW(model.parameters(), state="disk", release_gradients=True)
    loop = _loop(model)
    assert loop["optimizer_state_bytes"] == 2 * 8 * 512
    assert loop["state_streamed"] and loop["gradients_released"]
    assert not moved.state


def test_of_two_optimizers_one_may_have_its_state_on_disk() -> None:
    model = _large_model()
    kept = torch.optim.SGD(model[0].parameters(), momentum=0.9)
    moved = AdamW(model[1].parameters(), state="disk", release_gradients=True)
    loop = _loop(model)
    assert loop["optimizer_state_bytes"] == 4 * (512 * 512 + 512) + 8 * 512
    assert loop["state_streamed"] and not loop.get("gradients_released")  # the other's stay until its step
    assert not kept.state and not moved.state


def test_two_optimizers_step_their_own_parts() -> None:
    model = _model()
    first = torch.optim.SGD(model[:2].parameters(), momentum=0.9)
    second = torch.optim.AdamW(model[2:].parameters())
    assert to_trace(optimizers_of(model), model) == optimizers_of(model)
    assert abs(_state_bytes(model) - (4 + 8) * ELEMENTS // 2) <= 64
    assert not first.state and not second.state


def test_what_is_not_known_is_assumed() -> None:
    model = _model()
    part = torch.optim.SGD(model[:2].parameters())
    assert to_trace(optimizers_of(model), model) == []  # another may come for the rest
    both = torch.optim.SGD(model.parameters())
    assert to_trace(optimizers_of(model), model) == []  # one of them is left over from an earlier run
    assert part is not both


def test_a_trace_is_no_step_for_hooks() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    calls: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda *_: calls.append("all"))
    optimizer.register_step_post_hook(lambda *_: calls.append("its own"))
    before = [parameter.clone() for parameter in model.parameters()]
    try:
        _state_bytes(model)
    finally:
        handle.remove()
    assert calls == []
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_state_that_exists_is_measured() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    device = torch.device("cpu")
    assert made_state_bytes(optimizers_of(model), device) == 0
    _step(model, optimizer)
    assert made_state_bytes(optimizers_of(model), device) == 4 * ELEMENTS
    assert made_state_bytes(optimizers_of(model), torch.device("meta")) == 0
    loop = json.loads(memscale.trace(model, torch.randn(8, 64)).to_json())["loop"]
    assert loop["optimizer_made_bytes"] == 4 * ELEMENTS == loop["optimizer_state_bytes"]


_RESUMED = textwrap.dedent(
    """
    import sys, torch, memscale
    from torch import nn
    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(10)])
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 1024)
    def step():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    config = memscale.Config(memory_budget_gb=2.0)
    memscale.plan(model, x, config)  # loads what the first trace loads
    step()
    if sys.argv[1] == "fresh":
        optimizer.state.clear()
    print(memscale.plan(model, x, config).unoptimized_peak_bytes)
    """
)


def test_a_resumed_run_needs_no_more_than_a_fresh_one() -> None:
    """Two fp32 values a parameter are 84 MB; a baseline that holds them is not asked for them again."""
    needs = [
        int(run_python("-c", _RESUMED, kind, check=True, env=environment_of_tests()).stdout)
        for kind in ("fresh", "resumed")
    ]
    assert abs(needs[0] - needs[1]) < 30e6, needs


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adafactor])
def test_a_run_has_its_bits_and_one_plan_whatever_steps_it(make: Any) -> None:
    def run(wrapped: bool) -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        model = _model()
        optimizer = make(model.parameters())
        if wrapped:
            memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
        for _ in range(3):
            _step(model, optimizer)
        plans = model._memscale_executor.run_watch.plan_count if wrapped else 0
        if wrapped:
            memscale.detach(model)
        return list(model.parameters()), plans

    plain, _ = run(False)
    ours, plans = run(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert plans <= 3


@pytest.mark.parametrize("home", ["bitsandbytes.optim", "torchao.optim"])
def test_8bit_moments_of_others_are_counted_before_and_after_they_exist(home: str) -> None:
    pytest.importorskip(home.partition(".")[0])
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    optimizer: torch.optim.Optimizer = importlib.import_module(home).AdamW8bit(model.parameters())

    def counted() -> tuple[int, int]:
        loop = json.loads(memscale.trace(model, torch.randn(8, 512)).to_json())["loop"]
        return loop["optimizer_state_bytes"], made_state_bytes([optimizer], torch.device("cpu"))

    expected, made = counted()
    assert made == 0
    model(torch.randn(8, 512)).sum().backward()
    optimizer.step()
    # Two bytes an element, two scales of four bytes for a block of 256, FP32 for biases; tables of 256 values.
    exact = 2 * (2 * 512 * 512 + 2 * 4 * 512 * 512 // 256 + 2 * 4 * 512)
    assert expected == exact
    assert exact <= counted()[1] <= exact + 2 * 2 * 256 * 4 + 64
