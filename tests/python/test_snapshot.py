"""A snapshot of modules finds every attribute again that a call, or the loop after it, has changed; the walk that notes
modules lets an Undo restore them."""

from __future__ import annotations

import collections
import gc
import weakref

import pytest
import torch
from torch import nn

from memscale import _core
from memscale.execution.module_state import modules_of, note_attributes


def taken(*modules, inert=None):
    return _core.take_snapshot(list(modules), len(modules), set() if inert is None else inert, None)


def noted_and_undone(change, *modules):
    def run(undo):
        note_attributes(undo, list(modules), set())
        change()

    _core.guarded(run)


def test_scalars_are_set_again():
    module = nn.Dropout(0.5)
    module.count, module.label = 3, "a"
    held, buffers, others = taken(module)
    assert buffers == [] and others == []
    module.count, module.label, module.p = 4, None, 0.25
    del module.training
    held.put_attributes()
    assert (module.count, module.label, module.p, module.training) == (3, "a", 0.5, True)


def test_names_in_another_order_are_found():
    module = nn.Identity()
    module.first, module.second = 1, 2
    held, _, _ = taken(module)
    del module.first
    module.second = 5
    module.first = 7
    held.put_attributes()
    assert (module.first, module.second) == (1, 2)


def test_a_scalar_that_became_something_else_is_one_again():
    module = nn.Identity()
    module.memory = None
    held, _, _ = taken(module)
    module.memory = torch.ones(2)
    held.put_attributes()
    assert module.memory is None


def test_later_attributes_and_buffers_go_but_those_of_memscale_stay():
    module = nn.Identity()
    held, _, _ = taken(module)
    module.later = [1]
    module.register_buffer("found", torch.ones(1))
    module.__dict__["_memscale_executor"] = "ours"
    held.put_attributes()
    assert not hasattr(module, "later") and not hasattr(module, "found")
    assert module._memscale_executor == "ours"


def test_what_is_no_scalar_is_reported_with_its_module():
    inner, outer = nn.BatchNorm1d(2), nn.Identity()
    outer.seen, outer.shape, outer.cache = torch.ones(1), (2, 3), {}
    _, buffers, others = taken(inner, outer)
    assert [(index, name) for index, name, _ in buffers] == [
        *((0, name) for name in ("running_mean", "running_var", "num_batches_tracked"))
    ]
    assert [(index, name) for index, name, _ in others] == [(1, "seen"), (1, "cache")]  # a shape holds no state


def test_types_that_are_inert_are_not_reported():
    module = nn.Identity()
    module.tool = collections.Counter()
    assert taken(module, inert={collections.Counter})[2] == []


def test_a_snapshot_keeps_no_tensor_among_the_attributes_alive():
    module = nn.Identity()
    module.output = torch.ones(2, requires_grad=True) * 2
    held = taken(module)[0]
    gone = weakref.ref(module.output)
    module.output = None
    gc.collect()
    assert gone() is None
    held.put_attributes()


def test_parameters_are_bound_again_and_the_undo_binds_the_present_ones():
    module = nn.Linear(2, 2)
    before, other = module.weight, nn.Parameter(torch.zeros(2, 2))
    held, _, _ = taken(module)
    module.weight = other

    def run(undo):
        assert held.bind_parameters(undo) is None
        assert module.weight is before

    _core.guarded(run)
    assert module.weight is other


def test_a_parameter_that_was_written_is_named():
    module = nn.Linear(2, 2)
    held, _, _ = taken(module)
    with torch.no_grad():
        module.bias.add_(1)
    assert _core.guarded(held.bind_parameters) == "bias"


def test_a_parameter_with_a_graph_is_held_without_it():
    module = nn.Identity()
    made = torch.ones(2, requires_grad=True) * 2
    module._parameters["weight"] = made
    held, _, _ = taken(module)

    def run(undo):
        held.bind_parameters(undo)
        bound = module._parameters["weight"]
        assert bound.is_leaf and bound.requires_grad and bound.data_ptr() == made.data_ptr()

    _core.guarded(run)
    assert module._parameters["weight"] is made


def test_only_the_first_modules_parameters_are_held():
    child, teacher = nn.Linear(1, 1), nn.Linear(1, 1)
    held, _, _ = _core.take_snapshot([child, teacher], 1, set(), None)
    with torch.no_grad():
        teacher.weight.zero_()
    assert _core.guarded(held.bind_parameters) is None


def test_shards_are_not_held():
    class Shard(nn.Parameter):
        pass

    module = nn.Identity()
    module.weight = Shard(torch.ones(1))
    held, _, _ = _core.take_snapshot([module], 1, set(), Shard)
    with torch.no_grad():
        module.weight.zero_()
    assert _core.guarded(held.bind_parameters) is None


class _Memory:
    def __init__(self):
        self.count, self.seen = 0, []


class _Listed(list):
    pass


@pytest.mark.parametrize("kind", [list, dict, set, collections.deque, collections.OrderedDict, _Listed])
@pytest.mark.parametrize("is_empty", [True, False])
def test_containers_are_noted_whether_they_are_empty_or_not(kind, is_empty):
    module = nn.Identity()
    module.cache = kind() if is_empty else kind([("a", 1)])
    cache, before = module.cache, list(module.cache)

    def change():
        if hasattr(cache, "append"):
            cache.append(("b", 2))
        elif isinstance(cache, dict):
            cache["b"] = 2
        else:
            cache.add(("b", 2))
        module.cache = None

    noted_and_undone(change, module)
    assert module.cache is cache and list(cache) == before


def test_nested_containers_and_objects_are_noted():
    module, memory = nn.Identity(), _Memory()
    module.cache, module.memory = {"inner": [[1]]}, memory

    def change():
        module.cache["inner"][0].append(2)
        module.cache["inner"].append(3)
        memory.count = 5
        memory.seen.append(1)
        memory.later = 1

    noted_and_undone(change, module)
    assert module.cache == {"inner": [[1]]}
    assert vars(memory) == {"count": 0, "seen": []}


def test_an_object_that_two_modules_share_is_restored_and_so_are_both():
    first, second, memory = nn.Identity(), nn.Identity(), _Memory()
    first.memory = second.memory = memory

    def change():
        memory.count = 1
        second.memory = None
        first.register_buffer("found", torch.ones(1))
        second.register_forward_hook(lambda *_: None)

    noted_and_undone(change, first, second)
    assert memory.count == 0 and second.memory is memory
    assert not first._buffers and not second._forward_hooks


def test_modules_come_in_torchs_order_each_once():
    shared = nn.Linear(1, 1)
    model = nn.Sequential(nn.Sequential(shared, nn.ReLU()), shared, nn.Sequential())
    model.register_module("nothing", None)
    assert [id(m) for m in modules_of(model)] == [id(m) for m in model.modules()]


def test_scripted_modules_are_walked_by_torch():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(1, 1)))
    assert [type(m) for m in modules_of(scripted)] == [type(m) for m in scripted.modules()]
    held, _, _ = taken(*modules_of(scripted))
    held.put_attributes()
    assert _core.guarded(held.bind_parameters) is None
