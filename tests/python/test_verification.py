"""`verify_correctness` detects a layer whose replay differs, names its parameter, and changes nothing."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import torch
from execute_support import few_threads, hook_tables, rng_states  # noqa: F401
from torch import nn
from trainer_support import gpt2

import memscale
from memscale import Config, IntegrationError
from memscale.base.aside import is_replaying
from memscale.base.environment import Environment

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="memscale")


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(32, 32), nn.BatchNorm1d(32)
        self.dropout = nn.Dropout(0.2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.dropout(torch.relu(self.norm(self.linear(rows))))


class _Forgetful(_Block):
    """Computes another function in a replay."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + torch.tanh((3.0 if is_replaying() else 1.0) * self.linear(rows))


def _model(faulty: type[nn.Module] | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    kinds: list[Any] = [_Block, _Block, _Block, _Block]
    if faulty is not None:
        kinds[2] = faulty
    return nn.Sequential(*[kind() for kind in kinds])


def _config(**fields: Any) -> Config:
    return Config(force_optimize=True, verify_correctness=True, **fields)


def _everything(model: nn.Module) -> Any:
    return (
        rng_states()[1:],
        rng_states()[0].tolist(),
        {name: (value.clone(), value._version) for name, value in model.state_dict().items()},
        {name: value.data_ptr() for name, value in model.named_buffers()},
        {name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()},
        model.training,
    )


def _assert_same(before: Any, after: Any) -> None:
    for one, other in zip(before, after, strict=True):
        if isinstance(one, dict) and one and isinstance(next(iter(one.values())), tuple):
            assert one.keys() == other.keys()
            for name, value in one.items():
                if isinstance(value[0], torch.Tensor):
                    assert torch.equal(value[0], other[name][0]) and value[1] == other[name][1], name
                else:
                    assert value == other[name], name
        else:
            assert one == other


@pytest.mark.parametrize("training", [True, False])
def test_it_says_that_gradients_are_equal_and_leaves_everything(
    caplog: pytest.LogCaptureFixture, training: bool
) -> None:
    model = _model().train(training)
    rows = torch.randn(8, 32)
    model(rows).sum().backward()
    random.random()
    before, hooks = _everything(model), hook_tables(model)
    memscale.wrap(model, _config(), sample_input=rows)
    assert "loss and 16 gradients are equal to the bit (8 of 8 rows)" in caplog.text
    assert model._memscale_executor.counters()["recomputed_layers"] == 0  # another executor ran the check
    _assert_same(before, _everything(model))
    memscale.detach(model)
    assert hook_tables(model) == hooks


def test_it_is_done_once_at_the_first_forward_and_the_step_has_its_bits(caplog: pytest.LogCaptureFixture) -> None:
    def steps(model: nn.Module) -> list[Any]:
        torch.manual_seed(7)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for step in range(3):
            loss = model(torch.randn(8, 32, generator=torch.Generator().manual_seed(step))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.item())
        return [seen, [value.tolist() for value in model.state_dict().values()]]

    expected = steps(_model())
    model = memscale.wrap(_model(), _config())
    assert "verify_correctness" not in caplog.text
    assert steps(model) == expected
    assert caplog.text.count("verify_correctness") == 1
    assert model._memscale_executor.counters()["recomputed_layers"] > 0
    memscale.detach(model)


def test_a_layer_that_replays_differently_is_named() -> None:
    model, rows = _model(_Forgetful), torch.randn(8, 32)
    before, hooks = _everything(model), hook_tables(model)
    with pytest.raises(
        IntegrationError, match=r"verify_correctness: two unoptimized steps agree, .* layer \d .* other values"
    ):
        memscale.wrap(model, _config(mode="conservative"), sample_input=rows)
    _assert_same(before, _everything(model))
    assert hook_tables(model) == hooks


def test_at_the_first_forward_it_raises_there() -> None:
    model = memscale.wrap(_model(_Forgetful), _config(mode="conservative"))
    with pytest.raises(IntegrationError, match="verify_correctness"):
        model(torch.randn(8, 32))
    memscale.detach(model)


class _Random(_Block):
    """Differs from run to run, because it seeds a new generator each time."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator()
        generator.seed()
        return rows + self.linear(rows) * torch.rand(rows.shape, generator=generator)


def test_a_model_that_differs_from_itself_is_not_blamed_on_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    memscale.detach(memscale.wrap(_model(_Random), _config(), sample_input=torch.randn(8, 32)))
    assert "two unoptimized steps of this model differ from each other" in caplog.text


def test_under_a_budget_fewer_rows_are_compared(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]
    model, rows = nn.Sequential(*layers), torch.randn(16384, 256)
    plan = memscale.plan(model, rows, Config(force_optimize=True))
    kept, least = plan.unoptimized_peak_bytes, plan.predicted_peak_bytes
    budget = (0.6 * kept + 0.4 * least) / 1e9
    memscale.wrap(model, Config(memory_budget_gb=budget, verify_correctness=True), sample_input=rows)
    assert "are equal to the bit" in caplog.text
    assert "of 16384 rows" in caplog.text and "16384 of 16384" not in caplog.text
    memscale.detach(model)


def test_a_run_that_is_left_alone_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    model = memscale.wrap(_model(), Config(verify_correctness=True), sample_input=torch.randn(8, 32))
    assert "nothing is optimized" in caplog.text
    memscale.detach(model)


def test_a_transformer_with_dropout_and_a_loss_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    ids = torch.randint(0, 64, (4, 24))
    memscale.detach(memscale.wrap(gpt2(), _config(), sample_input={"input_ids": ids, "labels": ids}))
    assert "gradients are equal to the bit (4 of 4 rows)" in caplog.text


class _Checkpointed(_Block):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(super().forward, rows, use_reentrant=True)


def test_a_model_that_refuses_grad_trains_and_is_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    model = memscale.wrap(_model(_Checkpointed), _config())
    model(torch.randn(8, 32)).square().mean().backward()
    assert "the unoptimized step can't be made" in caplog.text
    memscale.detach(model)


class _Deterministic(_Block):
    """Computes another function under deterministic algorithms."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + torch.tanh((3.0 if torch.are_deterministic_algorithms_enabled() else 1.0) * self.linear(rows))


class _Peeking(_Block):
    """Reads the state of Python's generator and does not change it."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        own = random.Random()
        own.setstate(random.getstate())
        return rows + torch.tanh(own.random() * self.linear(rows))


def _steps_under_other_settings(kind: type[nn.Module]) -> None:
    """The forward alone runs under deterministic algorithms."""
    model = memscale.wrap(_model(kind), _config(mode="conservative"))
    torch.use_deterministic_algorithms(True)
    try:
        model(torch.randn(8, 32))
    finally:
        torch.use_deterministic_algorithms(False)
        memscale.detach(model)


@pytest.mark.parametrize("kind", [_Deterministic, _Peeking])
def test_state_that_a_replay_lacks_is_found_before_the_first_backward(
    kind: type[nn.Module], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _steps_under_other_settings(kind)
    assert "gradients are equal to the bit" in caplog.text

    def put(environment: Any, undo: Any) -> list[Any]:
        undo.later(torch._C._set_grad_enabled, torch.is_grad_enabled())
        torch._C._set_grad_enabled(True)
        return []

    monkeypatch.setattr(Environment, "put", put)  # replays without the settings and random states of their forward
    with pytest.raises(IntegrationError, match=r"verify_correctness: two unoptimized steps agree, .* other values"):
        _steps_under_other_settings(kind)
