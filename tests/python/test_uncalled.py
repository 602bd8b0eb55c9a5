"""A wrap that does nothing is told to the user once: no backward follows the forwards.

Loops that call parts of a model are in test_parts.py.
"""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import memscale

_FORWARDS = 12


def _net() -> nn.Module:
    return memscale.wrap(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "no backward has followed" in line]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "memscale")


def test_a_model_that_is_only_evaluated_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    net = _net()
    with torch.no_grad():
        for _ in range(3 * _FORWARDS):
            net(torch.randn(4, 8))
    assert len(_told(caplog)) == 1
    assert "no_grad" not in _told(caplog)[0]


def test_evaluation_with_gradients_on_is_told_how_to_switch_them_off(caplog: pytest.LogCaptureFixture) -> None:
    net = _net()
    for _ in range(_FORWARDS):
        net(torch.randn(4, 8))
    assert ["torch.no_grad()" in line for line in _told(caplog)] == [True]


@pytest.mark.parametrize("gradients", [torch.autograd.grad, torch.autograd.backward])
def test_a_model_that_trains_is_not_told(caplog: pytest.LogCaptureFixture, gradients: object) -> None:
    net = _net()
    loss = net(torch.randn(4, 8)).sum()
    if gradients is torch.autograd.grad:
        torch.autograd.grad(loss, list(net.parameters()))
    else:
        loss.backward()
    with torch.no_grad():
        for _ in range(_FORWARDS):
            net(torch.randn(4, 8))
    assert _told(caplog) == []


def test_a_check_of_the_validation_before_training_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    net = _net()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(4, 8))
    for _ in range(_FORWARDS):
        net(torch.randn(4, 8)).sum().backward()
    assert _told(caplog) == []
