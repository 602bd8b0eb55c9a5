"""Facts of a traced graph besides bytes: nodes, residents, the loss, the optimizer, and the description of the
arguments."""

from __future__ import annotations

import copy
import dataclasses
import os

import pytest
import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from graph_support import Layers, Plain, Returning, chain, layer_nodes, trace
from models import MODELS

from memscale.base.signature import describe_arguments
from memscale.config import Config
from memscale.errors import ProfileError
from memscale.tracing.profiler import MemoryProfiler

GB = 1e9


# ---- facts about nodes ------------------------------------------------------------------------


class Mutating(Plain):
    def forward(self, x, seen=None):
        if seen is not None:
            seen.append(x)
            return self.linear(x)
        return self.linear(x.mul_(2))


class Buffered(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x.detach().sum(0))
        return self.linear(x)


class Rebinding(Buffered):
    def forward(self, x):
        self.total = self.total + 1
        return self.linear(x)


class Clamping(Plain):
    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.clamp_(-1, 1)
        return self.linear(x)


class ClampingData(Plain):
    def forward(self, x):
        self.linear.weight.data.clamp_(-1, 1)
        return self.linear(x)


class SettingData(Plain):
    def forward(self, x):
        self.linear.weight.data = torch.nn.functional.normalize(self.linear.weight.data)
        return self.linear(x)


class Sourceless(Plain):
    def forward(self):
        return self.linear.weight * 2


def linear_and_dropout():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))


# Call, layer, the flag of both calls, and whether the first call also has the flag "chained".
FLAGS = {
    "chained": (chain, Plain, "", True),
    "copied between": (lambda layers, x: layers[1](layers[0](x).clone()), Plain, "", False),
    "by keyword": (lambda layers, x: layers[1](x=layers[0](x)), Plain, "", False),
    "plain data": (lambda layers, x: layers[1](layers[0](x), (1, [None], {"a": "b"})), Plain, "", True),
    "in place": (lambda layers, x: chain(layers, x * 1), Mutating, "mutates_input", True),
    "list grows": (lambda layers, x: layers[1](layers[0](x, []), []), Mutating, "mutates_input", True),
    "parameter written": (chain, Clamping, "mutates_input", True),
    "parameter written by its data": (chain, ClampingData, "mutates_input", True),
    "parameter's data set": (chain, SettingData, "mutates_input", True),
    "buffer written": (chain, Buffered, "updates_buffers", True),
    "buffer rebound": (chain, Rebinding, "updates_buffers", True),
    "no tensors": (lambda layers, x: x @ (layers[0]() + layers[1]()), Sourceless, "no_tensor_input", False),
    "random": (chain, linear_and_dropout, "uses_rng", True),
    "opaque": (
        lambda layers, x: layers[1](layers[0](x, object()), [object()]),
        Plain,
        "opaque_argument",
        True,
    ),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_of_layers(name):
    call, layer, flag, is_chained = FLAGS[name]
    graph = trace(Layers(call, layer), torch.randn(3, 4))
    flags = {flag} - {""}
    expected = [flags | {"chained"} if is_chained else flags, flags]
    assert [set(node["flags"]) for node in layer_nodes(graph)] == expected


def test_a_layer_called_twice_is_two_nodes():
    graph = trace(Layers(lambda layers, x: layers[0](layers[0](layers[1](x)))), torch.randn(3, 4))
    assert [(n["name"], n["call"]) for n in layer_nodes(graph)] == [("layers.1", 0), ("layers.0", 0), ("layers.0", 1)]


def test_inputs_are_storages_of_the_arguments():
    def call(layers, x):
        mask = x > 0
        return layers[1](layers[0](x, {"mask": [mask]}), mask)

    graph = trace(Layers(call), torch.randn(3, 4))
    first, second = layer_nodes(graph)
    storages = [
        [graph["storages"][node["externals"][i]] for i in graph["profiles"][node["profile"]]["inputs"]]
        for node in (first, second)
    ]
    assert [s["role"] for s in storages[0]] == ["batch", "activation"]
    assert [s["bytes"] for s in storages[1]] == [48, 12]


# ---- residents and the loop --------------------------------------------------------------------


def test_tied_and_shared_parameters_count_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    model.append(model[0])
    graph = trace(model, torch.randn(2, 4))
    assert graph["residents"] == {
        "parameter_bytes": 64,
        "trainable_bytes": 64,
        "buffer_bytes": 0,
        "batch_bytes": 32,
        "largest_parameter_bytes": 64,
    }
    assert sum(s["role"] == "gradient" for s in graph["storages"]) == 1


def test_frozen_parameters_get_no_gradient():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    graph = trace(model, torch.randn(2, 4))
    assert graph["residents"]["parameter_bytes"] == 160
    assert graph["residents"]["trainable_bytes"] == 80
    assert sorted(s["bytes"] for s in graph["storages"] if s["role"] == "gradient") == [16, 64]


def test_tensors_held_as_attributes_count_as_buffers():
    class Holding(Plain):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.zeros(8))
            self.plain = torch.zeros(16)
            self.listed = [torch.zeros(32)]

        def forward(self, x):
            return self.linear(x).sum() + self.plain.sum() + self.listed[0].sum() + self.b.sum()

    assert trace(Holding(), torch.randn(2, 4))["residents"]["buffer_bytes"] == 4 * (8 + 16 + 32)


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


@pytest.mark.parametrize(
    ("make", "external"),
    [
        (lambda y: y.sum(), 0),
        (lambda y: (y.sum(), y), 0),
        (lambda y: {"loss": y.sum(), "logits": y}, 0),
        (lambda y: Output(y.sum(), y), 0),
        (lambda y: y, 2 * 48),
        (lambda y: (y, [y * 2]), 2 * 96),
        (lambda y: {"logits": y}, 2 * 48),
        (lambda y: y.detach(), None),
        (lambda y: None, None),
    ],
)
def test_the_loss_is_the_models_or_reserved_for(make, external):
    graph = trace(Returning(make), torch.randn(3, 4))
    assert graph["loop"]["external_loss_bytes"] == (external or 0)
    has_gradients = any(s["role"] == "gradient" for s in graph["storages"])
    assert has_gradients == (external is not None)


def test_outputs_are_marked():
    graph = trace(Returning(lambda y: (y.sum(), y * 2)), torch.randn(3, 4))
    assert sorted(s["bytes"] for s in graph["storages"] if s["role"] == "output") == [4, 48]
    assert graph["loop"]["outputs_held"] and not graph["loop"]["observed"]


def test_inputs_that_need_gradients_are_traced():
    x = torch.randn(3, 4, requires_grad=True) * 2
    graph = trace(Returning(lambda y: y.sum()), x)
    assert graph["residents"]["batch_bytes"] == 48


OPTIMIZERS = {
    "adamw": (lambda p: torch.optim.AdamW(p), 2, 2),
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), 0, None),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1, None),
    "foreach": (lambda p: torch.optim.AdamW(p, foreach=True), 2, None),
    "two groups": (lambda p: torch.optim.AdamW([{"params": p[:1]}, {"params": p[1:], "lr": 0.5}]), 2, 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_state_is_what_it_makes(name):
    make, copies, transients = OPTIMIZERS[name]
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), torch.randn(2, 64)
    optimizer = make(list(model.parameters()))
    groups = [dict(group) for group in optimizer.param_groups]
    graph = trace(model, x, optimizer=optimizer)
    parameters = graph["residents"]["parameter_bytes"]
    assert abs(graph["loop"]["optimizer_state_bytes"] - copies * parameters) <= 8 * 4  # step counters
    if transients is not None:
        transient = graph["loop"]["optimizer_transient_bytes"]
        assert transient == pytest.approx(transients * 64 * 64 * 4, rel=0.01)
    assert not optimizer.state and [dict(group) for group in optimizer.param_groups] == groups


def test_an_optimizer_that_was_patched_or_has_state_is_not_touched():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(2, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(x).sum().backward()
    optimizer.step()
    optimizer.register_step_post_hook(lambda *_: pytest.fail("a hook of the caller ran"))
    state = copy.deepcopy(optimizer.state_dict())
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    graph = trace(model, x, optimizer=optimizer)
    assert graph["loop"]["optimizer_state_bytes"] >= 2 * graph["residents"]["parameter_bytes"]
    assert str(optimizer.state_dict()) == str(state)
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    assert scheduler.last_epoch == 0


def test_an_optimizer_that_can_not_be_traced_is_estimated():
    class Reading(torch.optim.Optimizer):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["x"] = torch.zeros_like(parameter)
                    parameter.grad[parameter.grad > 0].sum()

    model = nn.Linear(8, 8)
    graph = trace(model, torch.randn(2, 8), optimizer=Reading(model.parameters(), {}))
    assert graph["loop"]["optimizer_state_bytes"] == 2 * (64 + 8) * 4
    assert graph["loop"]["optimizer_transient_bytes"] == 2 * 64 * 4


def test_without_an_optimizer_two_fp32_moments_are_reserved():
    model = nn.Linear(8, 8).to(torch.bfloat16)
    graph = trace(model, torch.randn(2, 8, dtype=torch.bfloat16))
    assert graph["loop"]["optimizer_state_bytes"] == 2 * (64 + 8) * 4


# ---- models of transformers ------------------------------------------------------------------------


def test_no_cache_is_made_in_training():
    case = MODELS["gpt2"]()
    assert case.model.config.use_cache
    graph = trace(case.model, **case.batch(0)[1])
    assert "use_cache=False" in graph["signature"]
    assert not any("opaque_argument" in node["flags"] for node in graph["nodes"])


def test_a_cache_of_the_callers_is_opaque():
    from transformers import DynamicCache

    case = MODELS["gpt2"]()
    cache = DynamicCache(config=case.model.config)
    graph = trace(case.model, **case.batch(0)[1], past_key_values=cache, use_cache=True)
    assert all("opaque_argument" in node["flags"] for node in layer_nodes(graph))
    assert cache.get_seq_length() == 0


def test_the_library_is_told_the_truth_again_afterwards():
    from transformers.utils import import_utils

    original = import_utils.is_fake_tensor
    case = MODELS["gpt2"]()
    trace(case.model, **case.batch(0)[1])
    with pytest.raises(ProfileError):
        trace(Returning(lambda y: y if y.sum() > 0 else None), torch.randn(2, 4))
    assert import_utils.is_fake_tensor is original


# ---- descriptions ---------------------------------------------------------------------------------


def test_arguments_are_described_by_what_decides_memory():
    @dataclasses.dataclass
    class Thing:
        x: int = 1

    described = describe_arguments(
        (torch.zeros(2, 3), [torch.zeros(4, dtype=torch.int8)]),
        {"flag": True, "scale": 0.5, "none": None, "nested": {"t": torch.zeros(())}, "thing": Thing()},
    )
    assert described == ("0:float32[2,3],1.0:int8[4],flag=True,scale=0.5,nested.t:float32[],thing=Thing")
    with torch.autocast("cpu", torch.bfloat16):
        assert describe_arguments((), {"a": 1}) == "a=1,autocast=cpu:bfloat16"


# ---- the machine ---------------------------------------------------------------------------


def test_the_machine_is_described(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = MemoryProfiler(Config(disk_offload_dir=str(tmp_path))).hardware()
    assert machine["cpu"]["usable_cpus"] >= 1 and machine["ram"]["total_bytes"] > GB
    assert machine["disk"]["dir"].startswith(str(tmp_path))


def test_random_numbers_are_counted():
    model = Plain()
    plain = trace(model, torch.randn(8, 4))

    class Dropping(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x, 0.5)

    graph = trace(torch.nn.Sequential(Plain(), Dropping()), torch.randn(8, 4))
    assert _draws(plain) == []
    assert _draws(graph) == [4 * 8]


def _draws(graph):
    events = [event for profile in graph["profiles"] for event in profile["forward"] + profile["backward"]]
    return [event[3] for event in events if event[0] == "work" and len(event) == 4]
