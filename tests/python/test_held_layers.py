"""A layer whose replay gives different values is detected before they reach a gradient; it is kept from then on."""

from __future__ import annotations

import copy
import json
import logging

import pytest
import torch
from torch import nn

import memscale
from memscale import Config, IntegrationError

WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(torch.nn.functional.silu(self.inner(x)))


def model_of(blocks: int = 4) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*[Block() for _ in range(blocks)])


def wrapped(model: nn.Module, tmp_path) -> nn.Module:
    config = Config(force_optimize=True, enable_logging=False, enable_offloading=False, disk_offload_dir=str(tmp_path))
    memscale.wrap(model, config)
    return model


def step(model: nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    model(torch.linspace(-1, 1, 16 * WIDTH).view(16, WIDTH)).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def recomputed(model: nn.Module) -> set[str]:
    plan = json.loads(model._memscale_executor.plan.to_json())
    return {entry["name"] for entry in plan["entries"] if entry["technique"].startswith("recompute")}


def test_other_values_stop_the_backward_and_the_layer_is_kept_from_then_on(tmp_path, monkeypatch):
    model = model_of()
    expected = step(copy.deepcopy(model))
    wrapped(model, tmp_path)
    assert all(map(torch.equal, step(model), expected))
    before = recomputed(model)
    assert before
    monkeypatch.setattr(torch.nn.functional, "silu", torch.relu)
    loss = model(torch.linspace(-1, 1, 16 * WIDTH).view(16, WIDTH)).square().mean()
    monkeypatch.undo()
    with pytest.raises(IntegrationError, match=r"layer \d .*other values when the layer is recomputed"):
        loss.backward()
    held = model._memscale_executor._core.held_layers()
    assert len(held) == 1 and held[0] in before
    assert all(map(torch.equal, step(model), expected))
    assert held[0] not in recomputed(model)
    assert "second run of the layer" in model._memscale_executor.plan.explain(held[0])
    memscale.detach(model)


def test_a_layer_that_writes_a_file_is_kept_and_the_plan_says_why(tmp_path, caplog):
    path = tmp_path / "calls"

    class Writer(Block):
        def forward(self, x):
            with path.open("a") as file:
                file.write("x")
            return super().forward(x)

    torch.manual_seed(1)
    model = nn.Sequential(Block(), Writer(), Block())
    plain = copy.deepcopy(model)
    expected = step(plain)
    path.unlink()
    with caplog.at_level(logging.WARNING, "memscale"):
        wrapped(model, tmp_path)
        for _ in range(4):
            assert all(map(torch.equal, step(model), expected))
    assert path.read_text() == "xxxx"
    assert "1" in model._memscale_executor._core.held_layers()
    memscale.detach(model)
