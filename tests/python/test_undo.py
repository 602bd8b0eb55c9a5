"""`guarded()` undoes all noted changes, the last first, exception or not. Each entry of the table of the process's
state can be set and is restored."""

from __future__ import annotations

import array
import collections
import ctypes
import functools
import itertools
import logging
import threading
import warnings
from functools import partial

import pytest
import torch
from execute_support import no_hooks_left

from memscale import _core
from memscale.base.environment import Environment
from memscale.base.settings import Switches
from memscale.model.quiet import hush
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


@pytest.mark.parametrize("passing", range(12))
def test_without_memory_all_that_can_be_is_put_back(passing):
    """Python gets memory `passing` more times, and then none, from before the undo to its end."""
    testing = pytest.importorskip("_testcapi")
    table, items, seen = {"a": 1}, [1, 2], [0, 0]
    swap = partial(seen.__setitem__, 0, 7)  # takes no memory
    spare = []

    def change(undo):
        undo.later(testing.remove_mem_hooks)  # runs last
        undo.slot(table, "a")
        undo.content(items)
        undo.later(swap)
        table["a"] = 2
        items[0] = 3
        spare.extend([] for _ in range(200))  # Python keeps none for a new list
        testing.set_nomemory(passing, 0)

    try:
        _core.guarded(change)
    except MemoryError:
        pass
    finally:
        testing.remove_mem_hooks()
    assert table == {"a": 1} and items == [1, 2] and seen == [7, 0] and spare


def test_an_undo_takes_no_memory_of_its_own():
    testing = pytest.importorskip("_testcapi")
    table, spare = {"a": 1}, []

    def change(undo):
        undo.later(testing.remove_mem_hooks)  # runs last
        undo.slot(table, "a")
        table["a"] = 2
        spare.extend([] for _ in range(200))
        testing.set_nomemory(0, 0)

    try:
        _core.guarded(change)
    finally:
        testing.remove_mem_hooks()
    assert table == {"a": 1}


def test_an_undo_takes_no_notes_while_it_runs():
    kept = []
    _core.guarded(kept.append)
    with pytest.raises(RuntimeError, match="no more notes"):
        kept[0].slot({}, "a")


def test_content_of_memory_and_of_the_users_own_classes_is_put_back():
    class Own(dict):
        def clear(self):
            raise AssertionError("code of the user's runs")

    class List(list):
        copy = clear = extend = None

    numbers, octets, number, own, items = (
        array.array("l", [1, 2]),
        bytearray(b"ab"),
        ctypes.c_int(5),
        Own(a=1),
        List([1]),
    )
    holders = (numbers, octets, number, own, items)

    def change(undo):
        for holder in holders:
            undo.content(holder)
        numbers.append(3)
        octets[:] = b"abc"
        number.value = 6
        own["b"] = 2
        items[:] = []

    _core.guarded(change)
    assert numbers.tolist() == [1, 2] and octets == b"ab" and number.value == 5 and own == {"a": 1} and items == [1]


def test_settings_that_are_changed_meanwhile_are_put_back():
    settings = Switches()

    def replay(undo):
        settings.put(undo)
        torch.set_default_dtype(torch.float64)
        torch.set_printoptions(precision=7)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_flush_denormal(True)
        torch.set_default_device("cpu")

    before = settings._values

    def whole(undo):
        Environment().put(undo)
        replay(undo)

    _core.guarded(whole)
    assert Switches()._values == before and torch._C._len_torch_function_stack() == 0


def test_saved_tensor_hooks_are_popped():
    def change(undo):
        undo.own_hooks()
        torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t).__enter__()
        raise _Stop

    with pytest.raises(_Stop):
        _core.guarded(change)
    assert no_hooks_left()


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


class Talking(torch.nn.Module):
    def forward(self, x):
        print("called")
        logging.getLogger("memscale.tests.talking").warning("called")
        warnings.warn("called", stacklevel=1)
        return x


def test_what_code_says_is_not_heard_twice(capsys, caplog):
    logging.getLogger("memscale.tests.talking")
    layer = Talking()
    reach = Reach([layer])

    def replay(undo):
        hush(undo, reach)
        other = threading.Thread(target=print, args=("other",))
        other.start()
        other.join()
        return layer(1)

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        _core.guarded(replay)
        assert (capsys.readouterr().out, caplog.records, heard) == ("other\n", [], [])
        layer(1)
        assert (capsys.readouterr().out, len(caplog.records), len(heard)) == ("called\n", 1, 1)
    assert "print" not in globals()


class Cached(torch.nn.Module):
    @functools.cache  # noqa: B019 - what users write
    def table(self, width):
        return torch.zeros(width), Own

    def forward(self, x):
        return x + self.table(3)[0] * Own.scale


class Own:
    scale = 1.0


class Saving(torch.nn.Module):
    def forward(self, x):
        torch.save(x, self.path)
        return x


def test_code_reaches_caches_and_classes_and_says_what_it_changes():
    reach = Reach([Cached()])
    assert (Cached, "table") in reach.caches and (Own, "scale") in reach.places and reach.obstacle is None
    assert Reach([Saving()]).obstacle == "its code calls torch.save()"


def test_code_says_what_it_reaches():
    assert Reach([Drawing()]).generators == [_generator] and Reach([Drawing()]).obstacle is None
    assert "iterator" in (Reach([Counting()]).obstacle or "")
    assert Reach([torch.nn.TransformerEncoderLayer(8, 2)]).places == []
