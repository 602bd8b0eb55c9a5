"""Models that can't be traced without running them are profiled on real steps."""

from __future__ import annotations

import copy
import gc
import json
import logging
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memscale
from memscale import Config
from memscale.tracing.profiler import MemoryProfiler


class _Branching(nn.Module):
    """Its control flow depends on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            if x.sum().item() > 1e9:
                x = -x
        return x


def _train(model: nn.Module, steps: int) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    losses = []
    for step in range(steps):
        x = torch.randn(2048, 256, generator=torch.Generator().manual_seed(step))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def _model() -> nn.Module:
    torch.manual_seed(0)
    return _Branching()


def test_small_saved_tensors_of_a_profiled_step_are_not_taken_for_held_ones() -> None:
    """Each layer saves less than a transfer's least size. If the warm-up kept that, recomputing would free nothing."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64)) for _ in range(24)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.mean().item() > 1e9:
                raise ValueError
            for layer in self.layers:
                x = x + layer(x)
            return x

    def train(model: nn.Module) -> list[torch.Tensor]:
        losses = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            loss = model(torch.randn(500, 64, generator=torch.Generator().manual_seed(step))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    expected = train(Small())
    model = memscale.wrap(Small(), Config(force_optimize=True, enable_logging=False))
    losses = train(model)
    entries = json.loads(model._memscale_executor.plan.to_json())["entries"]
    memscale.detach(model)
    assert all(map(torch.equal, losses, expected))
    assert sum(entry["technique"] != "keep" for entry in entries) >= 20


def test_a_step_that_can_not_be_followed_says_that_it_exceeds_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    class Jagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2))

        def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
            x = torch.nested.nested_tensor(parts, layout=torch.jagged)
            for layer in self.layers:
                x = layer(x)
            values: torch.Tensor = x.values()
            return values

    model = memscale.wrap(Jagged(), Config(memory_budget_gb=0.01))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING, "memscale"):
        for _ in range(6):
            model([torch.randn(20, 16), torch.randn(30, 16)]).sum().backward()
            optimizer.step()
    memscale.detach(model)
    said = [record.getMessage() for record in caplog.records]
    assert sum("its steps can't be followed, so no plan can keep the budget" in line for line in said) == 1
    assert sum("real steps can't be followed either" in line for line in said) == 1


class _Kept(_Branching):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        self.result = weakref.ref(result)
        return result


@pytest.mark.parametrize("budget_gb", [None, 40.0])
def test_the_output_of_the_forward_that_could_not_be_traced_dies_with_its_last_user(budget_gb) -> None:
    """The trace's error once held the frames of the forward in a cycle: its output stayed until a collection."""
    torch.manual_seed(0)
    model = memscale.wrap(_Kept(), Config(force_optimize=True, enable_logging=False, memory_budget_gb=budget_gb))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            model(torch.randn(8, 256)).square().mean().backward()
            assert model.result() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("options", [{}, {"mode": "conservative"}, {"enable_checkpointing": False}])
def test_a_plan_comes_from_real_steps_and_bits_are_equal(options, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="memscale")
    expected = _train(_model(), 5)
    model = memscale.wrap(_model(), Config(force_optimize=True, use_static_profiling=False, **options))
    found = _train(model, 5)
    assert all(map(torch.equal, expected, found))
    plan = model._memscale_executor.plan
    assert len(plan) == 4
    assert plan.predicted_peak_bytes > 0
    memscale.detach(model)


def test_the_fallback_is_taken_when_the_trace_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="memscale")
    model = memscale.wrap(_model(), Config(force_optimize=True, warmup_steps=1))
    _train(model, 3)
    assert "real steps" in caplog.text or model._memscale_executor.plan.predicted_peak_bytes > 0
    assert len(model._memscale_executor.plan) == 4
    memscale.detach(model)


def test_scripted_parts_are_left_to_themselves() -> None:
    """They accept no hooks, and their second run saves different tensors than their first."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        scripted = [torch.jit.script(nn.Sequential(nn.Linear(256, 256), nn.GELU())) for _ in range(2)]
        plain = [nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)]
        inside = nn.Sequential(nn.Linear(256, 256), nn.ModuleDict({"scripted": scripted[1]})["scripted"])
        return nn.Sequential(*plain[:2], scripted[0], inside, *plain[2:])

    expected = _train(model(), 5)
    wrapped = memscale.wrap(model(), Config(force_optimize=True, enable_offloading=False))
    assert all(map(torch.equal, expected, _train(wrapped, 5)))
    executor = wrapped._memscale_executor
    assert {entry["name"] for entry in executor.plan.entries} - {""} == {"0", "1", "4", "5"}
    assert executor.counters()["recomputed_layers"] > 0
    memscale.detach(wrapped)


def test_what_can_not_be_traced_is_tried_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []
    trace = MemoryProfiler.trace

    def counted(*args, **kwargs):
        tried.append(1)
        return trace(*args, **kwargs)

    monkeypatch.setattr(MemoryProfiler, "trace", counted)
    caplog.set_level(logging.WARNING, logger="memscale")
    model = memscale.wrap(_model(), Config(force_optimize=True, warmup_steps=1), torch.randn(8, 256))
    for rows in (16, 32, 64):  # each shape is new, and larger than the one before
        model(torch.randn(rows, 256)).square().mean().backward()
    model(torch.randn(64, 256))
    assert len(tried) == 1
    assert caplog.text.count("1 real steps are profiled instead") == 1
    assert model._memscale_executor.plan.predicted_peak_bytes > 0
    memscale.detach(model)


def test_an_input_of_the_wrong_shape_is_told_by_torch_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="memscale")
    model = memscale.wrap(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)), Config(force_optimize=True))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            model(torch.randn(4, 32))
    assert not caplog.messages
    model(torch.randn(4, 64)).sum().backward()
    assert model._memscale_executor.plan.predicted_peak_bytes > 0, "the forwards that failed say nothing of this one"
    memscale.detach(model)


def test_what_only_a_trace_refuses_is_told_when_the_forward_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    class RefusesFakes(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(x) is not torch.Tensor:
                raise TypeError(f"{type(x).__name__} is not a tensor")
            return super().forward(x)

    caplog.set_level(logging.WARNING, logger="memscale")
    model = memscale.wrap(RefusesFakes(64, 8), Config(force_optimize=True))
    model(torch.randn(4, 64)).sum().backward()
    assert [message.startswith("RefusesFakes can't be traced") for message in caplog.messages] == [True]
    memscale.detach(model)


def test_planning_alone_says_what_wrap_does_instead() -> None:
    for ask in (memscale.plan, memscale.trace):
        with pytest.raises(memscale.ProfileError, match="_Branching can't be traced.*wrap.. measures real steps"):
            ask(_model(), torch.randn(8, 256))


def test_without_any_way_to_profile_a_typed_error_is_raised() -> None:
    model = memscale.wrap(_model(), Config(use_static_profiling=False, use_empirical_fallback=False))
    with pytest.raises(memscale.ProfileError, match="use_static_profiling"):
        model(torch.randn(4, 256))
    memscale.detach(model)


def test_a_failing_step_ends_the_profile() -> None:
    model = memscale.wrap(_model(), Config(force_optimize=True, use_static_profiling=False))
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 3))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    _train(model, 4)
    assert len(model._memscale_executor.plan) == 4
    memscale.detach(model)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_profiled_step_may_lie_inside_a_checkpoint(use_reentrant):
    """A checkpoint runs the model again in backward, with a different stack of hooks on the thread."""
    plain = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.Tanh()) for _ in range(3)))
    model = memscale.wrap(copy.deepcopy(plain), memscale.Config(force_optimize=True, use_static_profiling=False))
    for _ in range(6):
        x = torch.randn(5, 24, requires_grad=True)
        for each in (plain, model):
            each.zero_grad()
            torch.utils.checkpoint.checkpoint(each, x, use_reentrant=use_reentrant).square().mean().backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    memscale.detach(model)


@pytest.mark.parametrize("options", [{}, {"enable_offloading": False}])
def test_a_profile_counts_no_tensors_of_the_warm_up(options) -> None:
    """What the warm-up's plan recomputes or fetches stands for the saved tensors, and is not counted beside them. Only
    the moment at which the engine has written what it stores, and frees it, is the warm-up's. A step of the caller's
    own has no marks of final gradients."""

    def storages_of_a_layer(is_static: bool) -> dict[str, list[tuple[str, int]]]:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)) for _ in range(6)]
        config = Config(force_optimize=True, use_static_profiling=is_static, **options)
        model = memscale.wrap(nn.Sequential(*layers), config)
        _train(model, 3)
        graph = json.loads(model._memscale_executor._planner.documents[0])
        memscale.detach(model)
        profile = next(graph["profiles"][node["profile"]] for node in graph["nodes"] if node["name"] == "3")
        sizes = profile["storage_bytes"]
        events = {
            way: [(event[0], sizes[event[1]]) for event in profile[way] if event[0] not in ("work", "final")]
            for way in ("forward", "backward")
        }
        if options.get("enable_offloading", True):
            events["forward"] = [event for event in events["forward"] if event[0] != "free"]
        return events

    assert storages_of_a_layer(False) == storages_of_a_layer(True)


def test_a_forward_inside_a_backward_leaves_no_mode_on() -> None:
    model = memscale.wrap(_model(), Config(force_optimize=True))
    x = torch.randn(8, 256, requires_grad=True)
    model(x).sum().backward()
    for _ in range(2):
        checkpoint(model, x, use_reentrant=True).sum().backward()
    memscale.detach(model)
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0


def _modes_on() -> int:
    return torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()


def test_a_profiled_step_ends_when_its_graph_is_gone_before_a_backward() -> None:
    model = memscale.wrap(_model(), Config(force_optimize=True))
    x = torch.randn(8, 256)
    output = model(x)
    assert _modes_on() > 0
    del output
    assert _modes_on() == 0
    for _ in range(3):  # later steps are profiled as if that forward had not been
        model(x).sum().backward()
    assert len(model._memscale_executor.plan) == 4
    memscale.detach(model)
    assert _modes_on() == 0


@pytest.mark.parametrize("is_in_a_cycle", [False, True])
@pytest.mark.parametrize("has_backward", [False, True])
def test_a_profiled_step_ends_with_its_model(is_in_a_cycle: bool, has_backward: bool) -> None:
    model = memscale.wrap(_model(), Config(force_optimize=True))
    output = model(torch.randn(8, 256))
    if has_backward:
        output.sum().backward()
    assert _modes_on() > 0
    profile = weakref.ref(model._memscale_executor._layer_calls.profile)
    if is_in_a_cycle:
        model.cycle = [model]
    del model
    gc.collect()
    assert _modes_on() == 0
    assert profile() is None
    assert output.isfinite().all()


def test_a_profiled_step_that_another_thread_ends_leaves_no_mode_on() -> None:
    """The thread takes the modes off itself, when it begins its next forward of a wrapped model."""
    model, other = (memscale.wrap(_model(), Config(force_optimize=True)) for _ in range(2))
    output = model(torch.randn(8, 256))
    thread = threading.Thread(target=memscale.detach, args=(model,))
    thread.start()
    thread.join()
    other(torch.randn(8, 256)).sum().backward()
    memscale.detach(other)
    assert _modes_on() == 0
    assert output.isfinite().all()


def test_a_function_may_be_traced_within_a_profiled_step() -> None:
    """Constants of a traced function reach a dispatch mode as numbers, which torch does not take back."""
    model = memscale.wrap(_model(), Config(force_optimize=True))
    model(torch.randn(8, 256)).sum().backward()
    x = torch.randn(8, 256)
    traced = torch.jit.trace(lambda value: (value.sum(1) + 1.0).clamp_min(0), x)
    assert _modes_on() > 0
    assert torch.equal(traced(x), (x.sum(1) + 1.0).clamp_min(0))
    memscale.detach(model)


def test_parameters_may_be_swapped_within_a_profiled_step() -> None:
    model = memscale.wrap(_model(), Config(force_optimize=True))
    model(torch.randn(8, 256)).sum().backward()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    memscale.detach(model)
