"""Segments of layers, in which each layer's argument is the output of the layer before. Only the first layer keeps its
arguments; the layers before recompute the others', in one run, in nested runs, or joined with the layer. Results equal
the unwrapped run's to the bit, layers outside such a chain keep their arguments, and the peak is the predicted one."""

from __future__ import annotations

import array
import decimal
import json

import pytest
import torch
from execute_support import (
    assert_nothing_left,
    assert_same,
    executing,
    plan_json,
    seed_everything,
    train,
    twins,
    uniform,
)
from graph_support import trace
from models import MODELS, loss_of
from planned_support import HARDWARE, assert_peak_as_predicted
from test_selective import Stack

from memscale import Config, _core
from memscale.config import OptimizationMode
from memscale.errors import IntegrationError
from memscale.model.layers import find_layers

CHAINED = ("gpt2", "bert", "llama", "vit", "mlp", "resnet")
SEGMENT, RECOMPUTE = "recompute_segment", "recompute"
JOINED, NESTED_2, NESTED_3 = "recompute_joined", "recompute_nested_2", "recompute_nested_3"
SEGMENTS = (JOINED, SEGMENT, NESTED_2, NESTED_3)


def techniques_plan(model, techniques):
    """A plan that gives the layers these techniques in turn."""
    names = [name for name, _ in find_layers(model)]
    entries = [(name, 0, techniques[i % len(techniques)]) for i, name in enumerate(names)]
    return plan_json([("", 0, "keep"), *entries])


class Calls:
    """Counts the calls of each layer in large arrays, because a replay restores only small ones."""

    def __init__(self, model):
        self._counts = {name: array.array("l", bytes(2 << 20)) for name, _ in find_layers(model)}
        for name, layer in find_layers(model):
            layer.register_forward_pre_hook(lambda *_, count=self._counts[name]: count.__setitem__(0, count[0] + 1))

    def __getitem__(self, layer):
        return self._counts[layer][0]

    def values(self):
        return [count[0] for count in self._counts.values()]


def count_calls(model):
    return Calls(model)


@pytest.mark.parametrize(
    "techniques",
    [[SEGMENT], ["keep", RECOMPUTE, SEGMENT, SEGMENT], [RECOMPUTE, JOINED], [RECOMPUTE, NESTED_2, SEGMENT]],
)
@pytest.mark.parametrize("name", CHAINED)
def test_segments_are_exact(name, techniques, tmp_path):
    case, twin = twins(MODELS[name])
    expected = train(case, twin)
    with executing(case.model, techniques_plan(case.model, techniques), tmp_path) as executor:
        found = train(case, case.model)
        assert_nothing_left(executor)
    assert_same(expected, found)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_a_layer_of_a_segment_runs_once_more_for_all_after_it(name, tmp_path):
    case, _ = twins(MODELS[name])
    args, kwargs = case.batch(0)
    calls = count_calls(case.model)
    with executing(case.model, uniform(case.model, SEGMENT), tmp_path):
        loss_of(case.model(*args, **kwargs)).backward()
    layers = [layer for layer, _ in find_layers(case.model)]
    assert [calls[layer] for layer in layers] == [3] * (len(layers) - 1) + [2]


def deep(name, layers=9):
    """A Hugging Face model of many layers, with dropout if it has any, and its batch."""
    import transformers

    seed_everything(0)
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_head=2, n_layer=layers, vocab_size=64, n_positions=16)
        model = transformers.GPT2LMHeadModel(config)
    elif name == "bert":
        config = transformers.BertConfig(
            hidden_size=32, num_attention_heads=2, num_hidden_layers=layers, intermediate_size=64, vocab_size=64
        )
        model = transformers.BertForMaskedLM(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=32,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_hidden_layers=layers,
            intermediate_size=64,
            vocab_size=64,
            attention_dropout=0.1,
        )
        model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(64, (2, 16))
    return model.train(), {"input_ids": tokens, "labels": tokens}


def gradients(model, batch, steps=2):
    seed_everything(1)
    losses = []
    for _ in range(steps):
        loss = model(**batch).loss
        loss.backward()
        losses.append(loss.detach())
    return [*losses, torch.get_rng_state(), *(p.grad for p in model.parameters())]


#: For nine layers: their techniques, and how often each runs in a step, including its forward.
SCHEDULES = {
    "one run": ([RECOMPUTE, *[SEGMENT] * 8], [3] * 8 + [2]),
    "runs inside a run": ([RECOMPUTE, NESTED_2, NESTED_2, SEGMENT, NESTED_2, NESTED_2], [4, 4, 3, 3, 3, 2, 3, 3, 2]),
    "three deep": (
        [RECOMPUTE, NESTED_3, NESTED_2, NESTED_3, SEGMENT, NESTED_3, NESTED_2, NESTED_3, SEGMENT],
        [5, 4, 4, 3, 5, 4, 4, 3, 2],
    ),
    "pairs as one": ([RECOMPUTE, JOINED], [2] * 9),
    "pairs as one in a run": ([RECOMPUTE, *[JOINED, SEGMENT] * 4], [3] * 8 + [2]),
    "nothing but deep ones": ([RECOMPUTE, *[NESTED_3] * 8], [3] * 8 + [2]),
    "beside others": (
        ["keep", RECOMPUTE, NESTED_2, SEGMENT, "selective_1", RECOMPUTE, JOINED, "offload_disk", SEGMENT],
        None,
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_deep_schedules_are_exact_and_run_layers_as_often_as_they_say(name, schedule, tmp_path):
    techniques, runs = SCHEDULES[schedule]
    model, batch = deep(name)
    expected = gradients(model, batch)
    model, batch = deep(name)
    calls = count_calls(model)
    with executing(model, techniques_plan(model, techniques), tmp_path) as executor:
        found = gradients(model, batch)
        assert_nothing_left(executor)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    if runs is not None:
        assert [calls[layer] for layer, _ in find_layers(model)] == [2 * count for count in runs]


@pytest.mark.parametrize("technique", [RECOMPUTE, *SEGMENTS])
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_the_peak_is_the_predicted_one(name, technique, tmp_path):
    assert_peak_as_predicted(MODELS[name], technique, tmp_path)


class Narrow(torch.nn.Module):
    """Saves several activations; if recomputed, it holds only its argument between forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.tanh(self.linear(x))) + 0.5


def live_after_forward(technique, tmp_path):
    """Tensors that the forward's graph and the executor's records hold, in units of one activation."""
    import gc

    seed_everything(0)
    model = Stack(Narrow, 6)
    x = torch.randn(512, 256)
    with executing(model, uniform(model, technique), tmp_path):
        loss = model(x).sum()
        gc.collect()
        storages = {
            item.untyped_storage()._cdata: item.untyped_storage().nbytes()
            for item in gc.get_objects()
            if type(item) is torch.Tensor and item.shape == x.shape
        }
        loss.backward()
    return sum(storages.values()) // x.nbytes


def test_arguments_inside_a_segment_are_not_held(tmp_path):
    assert live_after_forward(RECOMPUTE, tmp_path) - live_after_forward(SEGMENT, tmp_path) == 5


class Broken(torch.nn.Module):
    """Breaks the chain between its layers: copies each output, or writes to it in place."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Narrow() for _ in range(4))
        self.writes = writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * 1.5 if not self.writes else layer(x)
            if self.writes:
                x.add_(1.0)
        return x


@pytest.mark.parametrize("writes", [False, True])
def test_where_the_chain_is_broken_arguments_are_kept(writes, tmp_path):
    results = []
    for technique in ("keep", SEGMENT):
        seed_everything(0)
        model = Broken(writes)
        calls = count_calls(model)
        with executing(model, uniform(model, technique), tmp_path):
            model(torch.randn(64, 256)).sum().backward()
        results.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert set(calls.values()) == {2}


def test_the_planner_does_not_offer_a_segment_where_the_chain_is_broken():
    def rules(model):
        graph = trace(model, torch.randn(64, 256))
        config = Config(mode=OptimizationMode.AGGRESSIVE, force_optimize=True)
        document = json.loads(_core.plan_uniform(json.dumps(graph), json.dumps(HARDWARE), config.to_json(), SEGMENT))
        return [entry["technique"] for entry in document["entries"] if entry["name"]]

    assert rules(Broken(False)) == ["keep"] * 4
    assert rules(Stack(Narrow, 4)) == ["keep"] + [SEGMENT] * 3


def test_a_layer_that_gives_another_tensor_when_it_runs_again_is_found(tmp_path):
    class Fickle(Narrow):
        calls = decimal.Context(prec=1)  # a replay doesn't restore it

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.prec += 1
            y = super().forward(x)
            return y if self.calls.prec <= 3 else y[:32]

    seed_everything(0)
    model = Stack(Fickle, 2)
    with executing(model, uniform(model, SEGMENT), tmp_path), pytest.raises(IntegrationError, match="another"):
        model(torch.randn(64, 256)).sum().backward()
