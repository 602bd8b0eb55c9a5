"""If an allocation fails in a step, memscale tightens the plan and repeats the step with the same bits, a bounded
number of times."""

from __future__ import annotations

import functools
import logging
import textwrap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from execute_support import few_threads  # noqa: F401
from forked_python import run_python
from torch import nn
from trainer_support import losses, same_parameters, trainer

import memscale
from memscale import Config

pytestmark = pytest.mark.usefixtures("few_threads")


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="memscale")


def _exhaust() -> None:
    torch.empty(1 << 55, dtype=torch.uint8)  # raises torch's error for a host without memory


class _Block(nn.Module):
    """Counts the calls of its backward, and fails in those of `failing`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(128, 128), nn.BatchNorm1d(128), nn.Dropout(0.1)
        self.passes, self.failing = [0], set()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.relu(rows + self.dropout(torch.tanh(self.norm(self.linear(rows)))))


def _model(failing: set[int], where: str) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*[_Block() for _ in range(6)])
    passes = [0]

    def fail(*_: Any) -> None:
        passes[0] += 1
        if passes[0] in failing:
            _exhaust()

    if where == "backward":
        model[1].linear.weight.register_hook(fail)
    elif where == "forward":
        model.register_forward_hook(fail)
    return model


def _rows(step: int) -> torch.Tensor:
    return torch.randn(2048, 128, generator=torch.Generator().manual_seed(step))


def _forward_and_backward(model: nn.Sequential, rows: torch.Tensor) -> float:
    loss = model(rows).square().mean()
    loss.backward()
    return loss.item()


def _train(model: nn.Sequential, micro: int = 1, rescued: bool = False) -> list[Any]:
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(5)
    seen = []
    for step in range(3):
        for part in range(micro):
            one = functools.partial(_forward_and_backward, model, _rows(10 * step + part))
            seen.append(model._memscale_executor.run_step(one) if rescued else one())
        optimizer.step()
        optimizer.zero_grad()
    return [seen, [value.tolist() for value in model.state_dict().values()]]


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("micro", [1, 3])
def test_a_step_of_ones_own_loop_is_made_again_to_the_same_bits(
    where: str, micro: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected = _train(_model(set(), where), micro)
    model = memscale.wrap(_model({2}, where), Config())
    found = _train(model, micro, rescued=True)
    assert found == expected
    executor = model._memscale_executor
    assert caplog.text.count("an allocation failed under a plan of") == 1
    assert executor.counters()["recomputed_layers"] + executor.counters()["offloaded_storages"] > 0
    memscale.detach(model)


def test_each_plan_is_tighter_and_the_number_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    model = memscale.wrap(_model(set(range(2, 100)), "backward"), Config())
    executor = model._memscale_executor
    peaks: list[int] = []

    def step() -> None:
        model(_rows(0)).square().mean().backward()
        peaks.append(executor.plan.predicted_peak_bytes)

    executor.run_step(step)
    model.zero_grad()
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator") as raised:
        executor.run_step(step)
    assert "no tighter plan was left" in raised.value.__notes__[0]
    tries = caplog.text.count("an allocation failed under a plan of")
    assert 1 <= tries <= 3
    assert executor.plan.predicted_peak_bytes < peaks[0]
    memscale.detach(model)


def test_other_errors_and_gradients_of_others_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    model = memscale.wrap(_model({2}, "backward"), Config())
    executor = model._memscale_executor
    with pytest.raises(ZeroDivisionError):
        executor.run_step(lambda: 1 / 0)
    model(_rows(0)).square().mean().backward()
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        executor.run_step(lambda: model(_rows(1)).square().mean().backward())
    assert "an allocation failed" not in caplog.text
    memscale.detach(model)


def test_a_trainer_makes_the_step_again_to_the_same_bits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8}

    def made() -> Any:
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=6, n_embd=192, n_head=4, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0
        )
        return trainer(tmp_path, transformers.GPT2LMHeadModel(config), **options)

    plain = made()
    plain.train()
    subject = made()
    passes = [0]

    def fail(*_: Any) -> None:
        passes[0] += 1
        if passes[0] == 4:  # the second batch of the second update
            _exhaust()

    subject.model.transformer.h[1].mlp.c_fc.weight.register_hook(fail)
    memscale.wrap(subject, Config())
    subject.train()
    assert caplog.text.count("an allocation failed under a plan of") == 1
    assert losses(subject) == losses(plain)
    assert same_parameters(subject.model, plain.model)


def test_a_process_whose_memory_is_limited_trains_on() -> None:
    code = textwrap.dedent(
        """
        import resource, torch, memscale
        from torch import nn
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = nn.Sequential(
            *[nn.Sequential(nn.Linear(128, 1024), nn.Tanh(), nn.Linear(1024, 128)) for _ in range(8)]
        )
        rows = torch.randn(8192, 128)
        memscale.wrap(model, memscale.Config(enable_logging=False, mode="conservative"))
        executor = model._memscale_executor
        def step():
            loss = model(rows).square().mean()
            loss.backward()
            return loss.item()
        small = rows[:64]
        model(small).square().mean().backward()  # what the first step loads is there
        model.zero_grad()
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 220_000_000,) * 2)
        print(executor.run_step(step))
        print(executor.counters()["recomputed_layers"] + executor.counters()["offloaded_storages"])
        """
    )
    run = run_python("-c", code)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout.split()[1]) > 0


def test_a_failed_step_frees_what_its_layers_were_called_with() -> None:
    fails: list[bool] = []
    given: list[weakref.ref[torch.Tensor]] = []

    class Failing(_Block):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if fails:
                fails.pop()
                given.append(weakref.ref(rows))
                _exhaust()
            return super().forward(rows)

    model = nn.Sequential(*[_Block() for _ in range(4)], Failing())
    rows = torch.randn(4096, 128)
    memscale.wrap(model, Config(force_optimize=True, enable_logging=False), sample_input=rows)
    fails.append(True)
    living = []

    def step() -> None:
        living.append([reference() is not None for reference in given])
        model(rows).sum().backward()

    model._memscale_executor.run_step(step)
    memscale.detach(model)
    assert living == [[], [False]]
