"""Where a loop calls `zero_grad()`: the plan knows what gradients live in forward and in backward."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import memscale
from memscale import Config

_WIDTH = 64


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(4)))


def _train(model: nn.Module, clears: str) -> list[torch.Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        loss = model(torch.randn(64, _WIDTH)).square().mean()
        if clears in ("before backward", "to zero"):
            optimizer.zero_grad(set_to_none=clears == "before backward")
        loss.backward()
        optimizer.step()
        if clears == "after":
            optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize(
    ("clears", "lives", "is_cleared"),
    [("after", False, False), ("before backward", True, True), ("to zero", True, False), ("never", True, False)],
)
def test_the_plan_learns_what_becomes_of_gradients(clears: str, lives: bool, is_cleared: bool) -> None:
    expected = _train(_model(), clears)
    model = memscale.wrap(_model(), Config(force_optimize=True, enable_offloading=False))
    found = _train(model, clears)
    graph, _ = model._memscale_executor._planner.documents
    plans = model._memscale_executor.run_watch.plan_count
    memscale.detach(model)
    assert all(map(torch.equal, expected, found))
    loop = json.loads(graph or "")["loop"]
    assert loop["gradients_live_in_forward"] is lives
    assert loop.get("gradients_cleared", False) is is_cleared
    assert plans <= 3


def test_gradients_that_backward_adds_to_are_planned_for_before_the_forward() -> None:
    """The first forward that meets gradients may pass the budget otherwise: its own measurement would come too late."""
    model = memscale.wrap(_model(), Config(force_optimize=True, enable_offloading=False))
    for _ in range(2):
        loss = model(torch.randn(64, _WIDTH)).square().mean()
        graph, _ = model._memscale_executor._planner.documents
        loss.backward()
    memscale.detach(model)
    assert json.loads(graph or "")["loop"]["gradients_live_in_forward"]
    assert json.loads(graph or "")["loop"]["observed"]
