"""The documented interface: names and their places, and what each documented call does."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import subprocess
import sys
import textwrap

import pytest
import torch
from time_limits import HANG_SECONDS
from torch import nn

import memscale
from memscale import Config, OptimizationMode
from memscale.policy import StrategyDecision

NAMES = [
    "wrap", "optimize", "detach", "apply_all_optimizations", "plan", "Config", "OptimizationMode",
    "AsyncOffloadConfig", "AutoTuner", "OOMPredictor", "estimate_savings", "enable_telemetry", "disable_telemetry",
    "MemScaleError", "ConfigError", "ProfileError", "BudgetInfeasibleError", "OffloadError", "IntegrationError",
    "core.Config", "core.MemoryProfiler", "core.DecisionEngine", "core.Executor", "core.profiler.MemoryProfiler",
    "core.decision_engine.DecisionEngine", "core.executor.Executor", "offload.AsyncOffloadConfig",
    "policy.StrategyContext", "policy.StrategyDecision", "policy.PolicyFallbackNeeded",
    "integrations.MemScaleCallback", "integrations.lightning.MemScaleCallback", "optim.AdamW",
    "techniques.cross_entropy", "techniques.linear_cross_entropy",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger="memscale")
    monkeypatch.delenv("MEMSCALE_POLICY", raising=False)


def _net(depth: int = 4, width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)])


def _step(model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


BATCH = torch.ones(64, 64)


# ---- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_documented_name_can_be_imported(name: str) -> None:
    module, _, attribute = f"memscale.{name}".rpartition(".")
    assert callable(getattr(importlib.import_module(module), attribute))


def test_documented_names_are_attributes_after_one_import() -> None:
    code = textwrap.dedent(f"""
        import functools, memscale
        for name in {NAMES!r}:
            path = name.split(".")
            if path[-2:] not in (["profiler", "MemoryProfiler"], ["decision_engine", "DecisionEngine"],
                                 ["executor", "Executor"], ["lightning", "MemScaleCallback"]):
                functools.reduce(getattr, path, memscale)
    """)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_SECONDS)


def test_one_class_has_one_identity_at_each_of_its_places() -> None:
    assert memscale.core.Config is memscale.Config
    assert memscale.offload.AsyncOffloadConfig is memscale.AsyncOffloadConfig
    assert memscale.policy.PolicyFallbackNeeded is memscale.errors.PolicyFallbackNeeded


# ---- the decision -------------------------------------------------------------------------------


def test_the_decision_is_the_configuration_if_stage_1_is_off() -> None:
    model = memscale.wrap(_net(), Config(mode="conservative", enable_offloading=False))
    executor = model._memscale_executor
    before = executor.decision
    assert isinstance(before, StrategyDecision)
    assert (before.decision_source, before.mode) == ("user_config", OptimizationMode.CONSERVATIVE)
    assert before.techniques == ("recompute",)
    assert not any(dataclasses.astuple(before.context))
    _step(model, BATCH, torch.optim.SGD(model.parameters(), 0.1))
    assert executor.decision.context.need_bytes > 0
    memscale.detach(model)


def test_the_decision_reads_as_a_dict_as_before() -> None:
    model = memscale.wrap(_net(), Config(auto_policy=True, memory_budget_gb=8), sample_input=BATCH)
    decision = model._memscale_executor.decision
    assert isinstance(decision, StrategyDecision)
    assert decision["decision_source"] == decision.decision_source == "rule_fallback"
    assert decision.get("nothing") is None and "mode" in decision
    assert dict(decision) == decision == decision.to_dict()
    assert json.dumps(dict(decision))
    assert hash(decision) == hash(model._memscale_executor.decision)
    memscale.detach(model)


def test_without_gpu_and_budget_no_line_says_that_the_rules_decide(caplog: pytest.LogCaptureFixture) -> None:
    model = memscale.wrap(_net(), Config(auto_policy=True), sample_input=BATCH)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        _step(model, BATCH, optimizer)
    assert model._memscale_executor.decision.decision_source == "user_config"
    assert "the rules decide" not in caplog.text
    assert caplog.text.count("policy (user_config)") == 1
    memscale.detach(model)


# ---- 8-bit state ---------------------------------------------------------------------------------


def _eight_bit(optimizer: torch.optim.Optimizer) -> bool:
    return any("exp_avg_8bit" in state for state in optimizer.state_dict()["state"].values())


@pytest.mark.parametrize("kind", [torch.optim.AdamW, memscale.optim.AdamW])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_wrap_with_8bit_state_acts_through_the_first_optimizer_that_steps(
    kind: type, steps_before: int, caplog: pytest.LogCaptureFixture
) -> None:
    twin, model = _net(), _net()
    told: list[object] = []
    seen = {}
    for which, net in (("twin", twin), ("ours", model)):
        optimizer = kind(net.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(steps_before):
            _step(net, BATCH, optimizer)
        if which == "ours":
            memscale.wrap(net, Config(use_8bit_optimizer=True))
            optimizer.register_step_post_hook(lambda given, *_: told.append(given))
        else:
            successor = memscale.optim.AdamW8bit(net.parameters(), lr=1e-3)
            successor.load_state_dict(optimizer.state_dict())
            optimizer.step = successor.step  # type: ignore[method-assign]
            successor.param_groups = optimizer.param_groups
        for _ in range(3):
            _step(net, BATCH, optimizer)
            scheduler.step()
        seen[which] = [p.detach().clone() for p in net.parameters()]
    assert all(map(torch.equal, seen["twin"], seen["ours"]))
    assert told == [optimizer] * 3
    assert _eight_bit(optimizer) and isinstance(optimizer, kind)
    assert caplog.text.count("has 8-bit state from this step on") == 1
    assert optimizer.param_groups[0]["lr"] == 1e-3 / 8
    memscale.detach(model)
    assert type(optimizer) is kind and not _eight_bit(optimizer)
    _step(model, BATCH, optimizer)
    assert float(optimizer.state[model[0][0].weight]["step"]) == steps_before + 4


def test_8bit_state_at_the_first_step_gives_the_closures_loss_and_runs_hooks_in_order() -> None:
    model = memscale.wrap(_net(), Config(use_8bit_optimizer=True))
    optimizer = torch.optim.AdamW(model.parameters())
    before = model[0][0].weight.detach().clone()
    order: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: order.append("before" if torch.equal(w(), before) else "late"))
    optimizer.register_step_post_hook(lambda *_: order.append("late" if torch.equal(w(), before) else "after"))

    def w() -> torch.Tensor:
        return model[0][0].weight.detach()

    def closure() -> torch.Tensor:
        order.append("closure")
        loss: torch.Tensor = model(BATCH).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    assert order == ["before", "closure", "after"]
    memscale.detach(model)


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 0.1), lambda p: torch.optim.AdamW(p, amsgrad=True)])
def test_an_optimizer_without_8bit_form_is_named_and_trains_on(make, caplog: pytest.LogCaptureFixture) -> None:
    model = memscale.wrap(_net(), Config(use_8bit_optimizer=True))
    optimizer = make(model.parameters())
    before = model[0][0].weight.detach().clone()
    for _ in range(2):
        _step(model, BATCH, optimizer)
    assert caplog.text.count("it trains on with its own state") == 1
    assert not torch.equal(model[0][0].weight, before)
    memscale.detach(model)


def test_an_optimizer_of_another_model_is_left_alone() -> None:
    model, other = memscale.wrap(_net(), Config(use_8bit_optimizer=True)), _net()
    optimizer = torch.optim.AdamW(other.parameters())
    _step(other, BATCH, optimizer)
    assert type(optimizer) is torch.optim.AdamW and not _eight_bit(optimizer)
    memscale.detach(model)


# ---- wrap ---------------------------------------------------------------------------------------


def test_wrap_says_at_once_on_which_machine_and_what_it_may_do(caplog: pytest.LogCaptureFixture) -> None:
    model = memscale.wrap(_net(), Config(memory_budget_gb=8, enable_tiling=True))
    said = caplog.text
    memscale.detach(model)
    for part in ("Sequential", "66.56 kB of parameters", " CPUs, ", "budget 8.00 GB"):
        assert part in said, part
    assert "mode balanced: recompute, offload, tiles" in said
    assert "the plan follows at the first training forward" in said
    caplog.clear()
    memscale.detach(memscale.wrap(_net(), Config(memory_budget_gb=8), sample_input=BATCH))
    assert "the plan follows" not in caplog.text and "memscale plan for Sequential" in caplog.text
    assert "more than there is" not in caplog.text
    memscale.detach(memscale.wrap(_net(), Config(memory_budget_gb=4096)))
    assert "budget 4.10 TB, more than there is; mode" in caplog.text


def test_the_smart_skip_says_its_threshold_and_what_force_optimize_would_give(caplog: pytest.LogCaptureFixture) -> None:
    batch = torch.ones(4096, 64)
    model = memscale.wrap(_net(8), Config(), sample_input=batch)
    plan = model._memscale_executor.plan
    told = json.loads(plan.to_json())["explanation"]["forced"]
    memscale.detach(model)
    assert plan.skipped and "up to a need of 85% of the target" in caplog.text
    assert "force_optimize=True would give a peak of " in caplog.text
    model = memscale.wrap(_net(8), Config(force_optimize=True), sample_input=batch)
    forced = model._memscale_executor.plan
    memscale.detach(model)
    # Between the two wraps the process may have grown a little.
    assert abs(forced.predicted_peak_bytes - told["peak_bytes"]) < 64e6
    assert told["peak_bytes"] < plan.predicted_peak_bytes + 64e6
    assert "up to a need" not in str(forced)


class _Loop:
    """A trainer that memscale does not know."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(self, steps: int) -> torch.Tensor:
        return torch.stack([_step(self.model, BATCH, self.optimizer) for _ in range(steps)])


def test_any_object_with_a_model_and_train_is_a_trainer() -> None:
    expected = _Loop(_net()).train(3)
    loop = _Loop(_net())
    assert memscale.wrap(loop, Config(force_optimize=True)) is loop
    assert torch.equal(loop.train(3), expected)
    executor = loop.model._memscale_executor
    assert executor.counters()["recomputed_layers"] > 0
    assert memscale.detach(loop) is loop
    assert "_memscale_executor" not in loop.model.__dict__


@pytest.mark.parametrize("wrong", [object(), _Loop, "model", type("Half", (), {"model": nn.Linear(2, 2)})()])
def test_anything_else_is_a_type_error_that_names_it(wrong: object) -> None:
    name = wrong.__qualname__ if isinstance(wrong, type) else type(wrong).__qualname__
    with pytest.raises(TypeError, match=name):
        memscale.wrap(wrong)


# ---- apply_all_optimizations --------------------------------------------------------------------


def test_without_a_config_all_optimizations_are_the_whole_stack(caplog: pytest.LogCaptureFixture) -> None:
    model = _net(8, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    same, stepped = memscale.apply_all_optimizations(model, optimizer)
    assert same is model and isinstance(stepped, memscale.optim.AdamW8bit)
    decision = model._memscale_executor.decision
    assert decision.mode is OptimizationMode.AGGRESSIVE and decision.techniques == ("recompute", "offload")
    before = _step(model, BATCH @ torch.ones(64, 256), stepped)
    assert _step(model, BATCH @ torch.ones(64, 256), stepped) < before
    assert "tiles, mixed precision" in caplog.text
    memscale.detach(model)


def test_without_a_config_an_optimizer_without_8bit_form_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _, same = memscale.apply_all_optimizations(model, optimizer)
    assert same is optimizer and "it trains on with its own state" in caplog.text
    memscale.detach(model)
    with pytest.raises(memscale.IntegrationError):
        memscale.apply_all_optimizations(model, optimizer, Config(use_8bit_optimizer=True))
    assert "_memscale_executor" not in model.__dict__


# ---- tiling -------------------------------------------------------------------------------------


class _Fused(nn.Module):
    """A block whose trial as a position-wise module fails: its first matrix has another layout than a Linear's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(32, 96))
        self.act, self.out = nn.GELU(), nn.Linear(96, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(self.act(x @ self.weight))


def test_the_search_for_modules_to_tile_lets_torch_print_nothing() -> None:
    from memscale.techniques.position_wise import find_position_wise

    torch_log = logging.getLogger("torch._subclasses.fake_tensor")
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    torch_log.addHandler(handler)
    try:
        find_position_wise(nn.Sequential(*[nn.Sequential(_Fused(), nn.Tanh()) for _ in range(3)]))
        assert heard == [] and not torch_log.disabled
    finally:
        torch_log.removeHandler(handler)


def test_aggressive_allows_tiles_if_the_flag_does() -> None:
    from models import gpt2

    case = gpt2()
    args, kwargs = case.batch(0)
    sample = kwargs or args
    for tiling in (False, True):
        plan = memscale.plan(case.model, sample, Config(mode="aggressive", force_optimize=True, enable_tiling=tiling))
        rules = {name: option["rule"] for name, option in plan.step_options.items()}
        assert ("flag_off" in (rules["chunked_loss_head"], rules["tiled_mlp"])) != tiling, rules
