"""`guarded()` undoes all noted changes, the last first, exception or not. Each entry of the table of the process's
state can be set and is restored."""

from __future__ import annotations

import collections
import itertools
import threading

import pytest
import torch

from memscale import _core
from memscale.base.environment import Environment, Switches
from memscale.model.reach import Reach


class Slotted:
    __slots__ = ("value",)


class _Stop(BaseException):
    pass


def cell_of(value):
    def inner():
        return value

    return inner.__closure__[0]


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_noted_is_put_back(fails):
    table = {"a": 1}
    ordered = collections.OrderedDict(a=1, b=2)
    containers = [[1, 2], {"x": 1}, {3, 4}, collections.deque([5]), collections.Counter("aab"), ordered]
    before = [container.copy() for container in containers]
    slotted, cell, lock = Slotted(), cell_of(7), threading.RLock()
    seen = []

    def change(undo, *args):
        undo.hold(lock)
        undo.later(seen.append, 1)
        undo.later(seen.append, 2)
        for place in ((table, "a"), (table, "new"), (slotted, "value"), (cell, "cell_contents"), (Slotted, "new")):
            undo.slot(*place)
        table.update(a=2, new=3)
        slotted.value, cell.cell_contents, Slotted.new = 1, 8, 1
        for container in containers:
            undo.content(container)
            container.clear()
        ordered["z"] = 1
        if fails:
            raise _Stop
        return args

    if fails:
        with pytest.raises(_Stop):
            _core.guarded(change, 1)
    else:
        assert _core.guarded(change, 1, 2) == (1, 2)
    assert table == {"a": 1} and not hasattr(slotted, "value") and cell.cell_contents == 7
    assert not hasattr(Slotted, "new") and seen == [2, 1]
    assert containers == before and list(ordered) == ["a", "b"]
    taken = []
    other = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
    other.start()
    other.join()
    assert taken == [True]


def test_one_that_fails_does_not_keep_the_others_from_being_put_back():
    table = {"a": 1}

    def change(undo):
        undo.slot(table, "a")
        undo.later(int, "no number")
        table["a"] = 2

    with pytest.raises(ValueError, match="no number"):
        _core.guarded(change)
    assert table == {"a": 1}


def test_saved_tensor_hooks_are_popped():
    top = torch._C._autograd._top_saved_tensors_default_hooks

    def change(undo):
        undo.own_hooks()
        torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t).__enter__()
        raise _Stop

    with pytest.raises(_Stop):
        _core.guarded(change)
    assert top(True) is None


def test_settings_are_those_of_the_forward_and_then_those_of_backward_again():
    torch.set_flush_denormal(True)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(not cached)
    try:
        forward = Switches()
    finally:
        torch.set_flush_denormal(False)
        torch.set_autocast_cache_enabled(cached)
    backward = Switches()
    assert forward._values != backward._values

    def replay(undo):
        forward.put(undo)
        assert Switches()._values == forward._values

    _core.guarded(replay)
    assert Switches()._values == backward._values


def test_modes_of_the_forward_are_on_in_a_replay_and_those_of_backward_are_off():
    from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack

    with BaseTorchFunctionMode() as inner:
        environment = Environment()
    with BaseTorchFunctionMode() as outer:
        _core.guarded(lambda undo: (environment.put(undo), found.extend(_get_current_function_mode_stack())))
        assert _get_current_function_mode_stack() == [outer]
    assert found == [inner]


found: list[object] = []
_generator = torch.Generator()
_numbers = itertools.count()


class Drawing(torch.nn.Module):
    def forward(self, x):
        return x * torch.rand(3, generator=_generator)


class Counting(torch.nn.Module):
    def forward(self, x):
        return x * next(_numbers)


def test_code_says_what_it_reaches():
    assert Reach([Drawing()]).generators == [_generator] and Reach([Drawing()]).obstacle is None
    assert "iterator" in (Reach([Counting()]).obstacle or "")
    assert Reach([torch.nn.TransformerEncoderLayer(8, 2)]).places == []
