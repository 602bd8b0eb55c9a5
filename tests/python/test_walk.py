"""A model's parameters, found in C, are those that torch finds, in its order."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from memscale import _core
from memscale.base.walk import parameters_of


class Odd(nn.Module):
    """Shares a module and a parameter, lacks some, and holds a child that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.again = self.first
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.first.weight
        self.register_parameter("missing", None)
        self.none = None
        self.register_module("empty", None)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("same", self.norm.running_mean)
        self.own = nn.Parameter(torch.ones(2))


def same(found, expected) -> bool:
    return [id(tensor) for tensor in found] == [id(tensor) for tensor in expected]


@pytest.mark.parametrize("make", [Odd, lambda: nn.Sequential(Odd(), nn.ModuleList([Odd(), nn.ReLU()])), nn.ReLU])
def test_the_same_tensors_in_the_same_order(make):
    model = make()
    assert same(parameters_of(model), model.parameters())
    found, expected = parameters_of(model, with_buffers=True), [*model.parameters(), *model.buffers()]
    assert len(found) == len(expected) and {id(tensor) for tensor in found} == {id(tensor) for tensor in expected}


def test_a_module_that_contains_itself_ends():
    model = Odd()
    model.itself = model
    assert same(parameters_of(model), model.parameters())


def test_scripted_modules_are_walked_by_torch():
    model = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert len(parameters_of(model)) == 4 and len(parameters_of(model, with_buffers=True)) == 7


def test_a_tree_that_is_too_deep_raises_and_does_not_crash():
    model = nn.Module()
    for _ in range(sys.getrecursionlimit() + 100):
        outer = nn.Module()
        outer.inner = model
        model = outer
    with pytest.raises(RecursionError):
        _core.module_tensors(model, False)
    while "inner" in model._modules:  # freed one by one: a chain of destructors would be as deep
        model = model._modules.pop("inner")


def test_what_is_no_module_is_refused():
    with pytest.raises((TypeError, AttributeError)):
        _core.module_tensors(3, False)
