"""The caller may use torch's modes around and inside ours; afterwards the stack of modes is unchanged."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from memscale.base.modes import begin_below, leave, retire, sweep


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def on() -> list[TorchDispatchMode]:
    return list(_get_current_dispatch_mode_stack())


def end(mode: TorchDispatchMode) -> None:
    leave(mode)


def test_a_mode_that_began_earlier_can_end_first():
    ours, theirs, later = Counting(), Counting(), Counting()
    with theirs:
        begin_below(ours)
        assert on() == [ours, theirs]
        with later:
            torch.ones(2) + 1
    assert on() == [ours]
    torch.ones(2)
    end(ours)
    assert on() == []
    assert (later.calls, theirs.calls, ours.calls) == (2, 2, 3)


def test_a_mode_that_is_not_on_can_be_ended():
    end(Counting())
    assert on() == []


class _Own(Counting):
    __module__ = "memscale.tests"  # modes of memscale's can be retired

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        retire(self)  # as a destructor may that runs here
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_a_mode_that_ends_inside_its_own_operator_leaves_with_the_next_sweep():
    ours, theirs = _Own(), Counting()
    begin_below(ours)
    with theirs:
        torch.ones(2)
        assert on() == [ours, theirs]
        sweep()
        assert on() == [theirs]
    assert on() == []
