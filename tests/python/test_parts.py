"""Loops that never call the forward of the wrapped model: its layers are planned from a real step, and bits stay equal.

Budgets and warnings of such loops are in tests/loops (`policy_gradient`, `encode_and_decode`).
"""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

import memscale
from memscale import Config

_WIDTH = 64


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 4 * _WIDTH)
        self.narrow, self.drop = nn.Linear(4 * _WIDTH, _WIDTH), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.narrow(functional.gelu(self.wide(self.norm(x)))))


class _Parts(nn.Module):
    """A backbone and a head, or an encoder and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*(_Block() for _ in range(3)))
        self.second = nn.Sequential(*(_Block() for _ in range(3)))
        self.head = nn.Linear(_WIDTH, 4)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.backbone(x) * 2

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(z.sin()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(x))


class _Agent(nn.Module):
    """Has no forward, as in public scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(*(_Block() for _ in range(3)), nn.Linear(_WIDTH, 4))
        self.critic = nn.Sequential(*(_Block() for _ in range(3)), nn.Linear(_WIDTH, 1))

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(x)

    def get_action_and_value(
        self, x: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        odds = torch.distributions.Categorical(logits=self.actor(x))
        action = odds.sample() if action is None else action
        return action, odds.log_prob(action), self.critic(x)


def _agent_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        action, before, value = model.get_action_and_value(x)
        last = model.get_value(x[-1:])
    _, log, now = model.get_action_and_value(x, action)
    return (log - before).exp().mean() + (now - value - last).square().mean() + now.mean()


_FORMS: dict[str, tuple[type[nn.Module], Callable[[nn.Module, torch.Tensor], torch.Tensor]]] = {
    "an agent": (_Agent, _agent_loss),
    "encode and decode": (_Parts, lambda model, x: model.decode(model.encode(x)).square().mean()),
    "backbone and head": (_Parts, lambda model, x: model.head(model.second(model.backbone(x))).square().mean()),
    "model.forward": (_Parts, lambda model, x: model.forward(x).square().mean()),
    "a submodule alone": (_Parts, lambda model, x: model.backbone(x).square().mean()),
}


def _train(
    model: nn.Module, loss_of: Callable[[nn.Module, torch.Tensor], torch.Tensor], steps: int = 5, micro: int = 1
) -> list[torch.Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    noted = []
    for _ in range(steps):
        for _ in range(micro):
            loss = loss_of(model, torch.randn(256, _WIDTH)) / micro
            loss.backward()
            noted.append(loss.detach())
        noted.extend(p.grad.clone() for p in model.parameters() if p.grad is not None)
        optimizer.step()
        optimizer.zero_grad()
    return noted + [p.detach().clone() for p in model.parameters()]


def _made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def _same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO, "memscale")
    yield
    assert _get_current_dispatch_mode() is None


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("options", [{"enable_offloading": False}, {"enable_checkpointing": False}])
@pytest.mark.parametrize("form", _FORMS)
def test_layers_are_planned_and_bits_are_equal(
    form: str, options: dict[str, bool], micro: int, caplog: pytest.LogCaptureFixture
) -> None:
    kind, loss_of = _FORMS[form]
    expected = _train(_made(kind), loss_of, micro=micro)
    assert _same(_train(_made(kind), loss_of, micro=micro), expected)
    model = memscale.wrap(_made(kind), Config(force_optimize=True, **options))
    found = _train(model, loss_of, micro=micro)
    executor = model._memscale_executor
    plan, counters = executor.plan, executor.counters()
    memscale.detach(model)
    assert _same(found, expected)
    assert len(plan) > 0, "the plan is still that of the warm-up"
    assert counters["recomputed_layers"] + counters["remade_tensors"] + counters["offloaded_bytes"] > 0
    told = [line for line in caplog.messages if "calls parts of this" in line]
    assert len(told) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_smaller_inputs_follow_the_plan_of_larger_ones() -> None:
    """The last batch of an epoch is partial."""

    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model.head(model.backbone(x[: 100 if x[0, 0] > 0.5 else 256])).square().mean()

    expected = _train(_made(_Parts), loss_of, 12)
    model = memscale.wrap(_made(_Parts), Config(force_optimize=True, enable_offloading=False))
    assert _same(_train(model, loss_of, 12), expected)
    assert model._memscale_executor.run_watch.plan_count <= 3
    memscale.detach(model)


def test_the_forward_takes_over_when_it_is_called() -> None:
    """A part is called once before training, with gradients on, as a check of shapes."""

    def train(model: nn.Module) -> list[torch.Tensor]:
        model.backbone(torch.zeros(2, _WIDTH))
        return _train(model, lambda model, x: model(x).square().mean())

    expected = train(_made(_Parts))
    model = memscale.wrap(_made(_Parts), Config(force_optimize=True))
    found = train(model)
    graph, _ = model._memscale_executor._planner.documents
    assert '"static"' in graph
    memscale.detach(model)
    assert _same(found, expected)


def test_hooks_of_someone_else_are_told_and_bits_are_equal(caplog: pytest.LogCaptureFixture) -> None:
    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(model.backbone, x, use_reentrant=False)
        return model.head(model.second(hidden)).square().mean()

    expected = _train(_made(_Parts), loss_of)
    model = memscale.wrap(_made(_Parts), Config(force_optimize=True))
    found = _train(model, loss_of)
    memscale.detach(model)
    assert _same(found, expected)
    assert len([line for line in caplog.messages if "saved-tensor hooks of someone else" in line]) == 1


def test_a_part_that_raises_leaves_the_next_step_whole() -> None:
    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RuntimeError):
            model.second(model.backbone(x)[:, :-1])
        return model.decode(model.encode(x)).square().mean()

    expected = _train(_made(_Parts), loss_of)
    model = memscale.wrap(_made(_Parts), Config(force_optimize=True))
    assert _same(_train(model, loss_of), expected)
    memscale.detach(model)


def test_nothing_is_left_on_the_layers_after_detach() -> None:
    model = memscale.wrap(_made(_Parts), Config(force_optimize=True))
    _train(model, _FORMS["backbone and head"][1], 2)
    memscale.detach(model)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    copy.deepcopy(model)


def test_a_model_that_is_not_called_at_all_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = memscale.wrap(_made(_Parts))
    loss = sum(p.square().sum() for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss.backward()
    for _ in range(2):
        optimizer.step()
    memscale.detach(model)
    warned = [line for line in caplog.messages if "was never called before the optimizer stepped" in line]
    assert len(warned) == 1
    assert "model.backbone, model.second, model.head" in warned[0]


@pytest.mark.parametrize("is_strict", [False, True])
def test_parts_that_no_plan_fits_train_on_with_one_warning(is_strict: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The budget can be checked only after a real step: that must not end a training, unless it is asked to."""
    form = "backbone and head"
    expected = _train(_made(_Parts), _FORMS[form][1], 3)
    config = Config(memory_budget_gb=0.05, strict_budget=is_strict, warmup_steps=1)
    model = memscale.wrap(_made(_Parts), config)
    if is_strict:
        with pytest.raises(memscale.BudgetInfeasibleError):
            _train(model, _FORMS[form][1], 3)
        return
    assert _same(_train(model, _FORMS[form][1], 3), expected)
    memscale.detach(model)
    assert len([line for line in caplog.messages if "over the budget, and run under the smallest plan" in line]) == 1


@pytest.mark.parametrize("collects", [False, True])
def test_a_layer_that_outlives_the_model_runs_on(collects: bool) -> None:
    model = memscale.wrap(_made(_Parts), Config(force_optimize=True))
    backbone = model.backbone
    gc.disable()  # the executor outlives the model until it is collected
    try:
        del model
        if collects:
            gc.collect()
        backbone(torch.ones(4, _WIDTH)).sum().backward()
    finally:
        gc.enable()
