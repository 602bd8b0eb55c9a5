"""A trace leaves nothing behind, whether it succeeds or fails: the model, the generators and the caller's objects are
unchanged. It reports changes that it can't undo."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import functools
import gc
import random

import numpy
import pytest
import torch
from graph_support import Plain, layer_nodes, trace
from torch import nn

import memscale
from memscale import _core
from memscale.base.aside import is_tracing
from memscale.errors import IntegrationError, ProfileError


class Remembering(nn.Module):
    """Its forward changes its own state, in ways that real modules do but shouldn't."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.table = torch.arange(4.0)
        self.calls = 0
        self.cache = {"old": 1}
        self.history = [torch.ones(2)]
        self.settings = Settings()

    def forward(self, x):
        self.calls += 1
        self.cached = x * self.table
        self.cache["new"] = x
        self.history.append(x)
        self.history[0] = x
        self.settings.last = x
        self.steps = self.steps + 1
        self.table.add_(1)
        if self.training:
            random.random()
            numpy.random.rand()
        return nn.functional.dropout(self.norm(self.linear(self.cached)), 0.5).sum()


DEPTH: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)


class Deepening(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        DEPTH.set(DEPTH.get() + 1)
        return self.linear(x) / DEPTH.get()


def test_a_trace_sets_no_context_variable():
    trace(Deepening(), torch.ones(2, 4))
    assert DEPTH.get() == 0


class Settings:
    def __init__(self):
        self.width = 4


def deep_state(model):
    """The modules' attributes and their items, with identities, versions and values."""
    state = []
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            state.append((name, key, id(value)))
            if isinstance(value, dict):
                state.extend((name, key, inner, id(item)) for inner, item in value.items())
            if isinstance(value, list):
                state.extend((name, key, index, id(item)) for index, item in enumerate(value))
            if isinstance(value, Settings):
                state.append((name, key, sorted(vars(value).items())))
    tensors = [*model.parameters(), *model.buffers()]
    state.extend((t._version, t.detach().clone().tolist(), t.requires_grad, id(t.grad)) for t in tensors)
    return state


def generator_states():
    return torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()


@pytest.mark.parametrize("fails", [False, True])
def test_a_trace_leaves_no_trace(fails):
    model = Remembering()
    model.linear.weight.grad = torch.ones(4, 4)
    model.norm.eval()
    handle = model.linear.register_forward_hook(_raise if fails else _pass)
    x = torch.randn(3, 4)
    before = deep_state(model)
    generators = generator_states()
    table = model.table.clone()
    if fails:
        with pytest.raises(ProfileError, match="Remembering can't be traced .* RuntimeError: on purpose"):
            trace(model, x)
    else:
        trace(model, x)
    assert deep_state(model) == before
    assert generator_states() == generators
    assert torch.equal(model.table, table)
    assert x._version == 0 and x.grad is None
    assert torch.is_grad_enabled() and not is_tracing()
    handle.remove()
    model(x).backward()  # the model still works
    assert model.calls == 1


def _pass(module, args, output):
    assert is_tracing() or type(output) is torch.Tensor


def _raise(module, args, output):
    raise RuntimeError("on purpose")


def test_batch_norm_counts_nothing():
    model = nn.Sequential(*[nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)) for _ in range(2)])
    before = {name: (buffer.clone(), buffer._version) for name, buffer in model.named_buffers()}
    graph = trace(model, torch.randn(2, 3, 4, 4))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name][0]) and buffer._version == before[name][1]
    assert all("updates_buffers" in node["flags"] for node in layer_nodes(graph))


def test_a_model_in_evaluation_mode_is_traced_in_training_mode_and_stays_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    model.eval()
    graph = trace(model, torch.randn(2, 4))
    assert any("uses_rng" in node["flags"] for node in graph["nodes"])
    assert not any(module.training for module in model.modules())


def test_modules_in_another_mode_than_the_root_stay_in_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    model[1].eval()
    graph = trace(model, torch.randn(2, 4))
    assert not any("uses_rng" in node["flags"] for node in graph["nodes"])


def test_no_memory_of_the_library_is_left():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    trace(model, x)
    before = _core.memory_live()
    trace(model, x)
    assert _core.memory_live() == before


_kept = []


class Leaking(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        _kept.append(y)
        return y.sum()


def test_what_a_forward_puts_into_a_global_list_is_taken_out_again():
    real = torch.zeros(2)
    _kept[:] = [real]
    trace(Leaking(), torch.randn(2, 4))
    assert len(_kept) == 1 and _kept[0] is real
    _kept.clear()


class Holder:
    """An object of the caller's that no module refers to."""

    last = None


_holder = Holder()
_by_name: dict[str, torch.Tensor] = {}
_recent: collections.deque = collections.deque(maxlen=3)
_wrapped: list[tuple] = []


@functools.lru_cache(maxsize=4)
def _scale(size):
    return torch.ones(size)


@pytest.mark.parametrize(
    ("keep", "nothing_left"),
    [
        (lambda y: setattr(_holder, "last", y), lambda: _holder.last is None),
        (lambda y: _by_name.update(y=y), lambda: not _by_name),
        (lambda y: _recent.append(y.detach()), lambda: not _recent),
        (lambda y: _wrapped.append(("y", (y, 1))), lambda: not _wrapped),
        (lambda y: y * _scale(4), lambda: type(_scale(4)) is torch.Tensor),
    ],
    ids=["attribute", "dict", "deque", "tuples", "cached function"],
)
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_trace_stays_with_the_caller(keep, nothing_left, fails):
    def keep_and_perhaps_fail(module, args, y):
        keep(y)
        if fails:
            y.sum().item()

    model = torch.nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].register_forward_hook(keep_and_perhaps_fail)
    with pytest.raises(ProfileError) if fails else contextlib.suppress(ProfileError):
        trace(model, torch.randn(2, 4))
    assert nothing_left()
    _scale.cache_clear()


def test_a_tensor_that_cannot_be_taken_back_is_an_error():
    def generate():
        kept = yield
        yield kept

    keepers = [generate()] * 100  # too many to search
    next(keepers[0])
    model = torch.nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, y: [keepers[0].send(y)].clear())
    with pytest.raises(IntegrationError, match="from which memscale can't remove them"):
        trace(model, torch.randn(2, 4))


def test_the_callers_objects_are_not_changed():
    class Memory:
        def __init__(self):
            self.tensors = [torch.zeros(2)]

    class Appending(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, memory):
            memory.tensors.append(self.linear(x["x"][0]))
            x["x"].append(1)
            return memory.tensors[-1].sum()

    memory, x = Memory(), {"x": [torch.randn(2, 4)]}
    before = copy.copy(memory.tensors), list(x["x"])
    trace(Appending(), x, memory)
    assert memory.tensors == before[0] and x["x"] == before[1]


class Cyclic(Plain):
    def forward(self, x):
        y = self.linear(x)
        cycle = [y * 2]
        cycle.append(cycle)
        del cycle
        for _ in range(50):
            [[] for _ in range(1000)]  # enough to start the collector if it were enabled
        return y.sum()


def test_the_garbage_collector_has_no_part_in_the_graph():
    graph = trace(Cyclic(), torch.randn(3, 4))
    (work,) = [node for node in graph["nodes"] if node["kind"] == "root"]
    events = graph["profiles"][work["profile"]]["forward"]
    doubled = next(event[1] for event in events if event[0] == "alloc")
    assert ["free", doubled] not in events


def test_a_parameter_can_be_swapped_after_a_trace():
    """`torch.utils.swap_tensors()` refuses a tensor to which anything refers weakly."""
    model = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(8, 8))
    memscale.wrap(model, memscale.Config(force_optimize=True, mode="aggressive"))
    gc.disable()
    try:
        model(torch.randn(4, 8))
        torch.utils.swap_tensors(model.bias, torch.nn.Parameter(torch.zeros(8)))
    finally:
        gc.enable()
        memscale.detach(model)
    assert torch.equal(model.bias, torch.zeros(8))


def test_a_parameter_can_be_swapped_while_its_gradient_lives():
    model = memscale.wrap(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), memscale.Config(force_optimize=True)
    )
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
    model(torch.randn(4, 8))
    torch.utils.swap_tensors(model[0].weight, torch.nn.Parameter(torch.zeros(8, 8)))
    memscale.detach(model)
    assert torch.equal(model[0].weight, torch.zeros(8, 8))
