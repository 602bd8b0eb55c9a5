"""Saved tensors with two values (dropout masks, comparisons) are kept as bits and restored exactly."""

from __future__ import annotations

import copy
import gc
import json
import pathlib
from typing import Any

import pytest
import torch
from execute_support import assert_nothing_left, assert_same, executing, plan_json, train, twins, uniform
from graph_support import observe_loop, trace
from models import MODELS, Case, _lm
from planned_support import HARDWARE

import memscale
from memscale import _core

BITS_PER_FLOAT = 32


def gpt2_with_dropout(**settings: object) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64,
        n_positions=256,
        n_embd=32,
        n_layer=3,
        n_head=4,
        resid_pdrop=0.1,
        embd_pdrop=0.1,
        attn_pdrop=0.1,
        attn_implementation="eager",
        use_cache=False,
        **settings,
    )
    torch.manual_seed(0)
    return GPT2LMHeadModel(config).train()


def case_with_dropout() -> tuple[Case, torch.nn.Module]:
    case = _lm(gpt2_with_dropout(), shape=(2, 128))
    return case, copy.deepcopy(case.model)


@pytest.mark.parametrize("technique", ["offload_disk", "mixed"])
def test_masks_are_bits_and_the_run_is_the_plain_run(technique, tmp_path):
    case, twin = case_with_dropout()
    expected = train(case, twin)
    with executing(case.model, uniform(case.model, technique, min_bytes=4096), tmp_path) as executor:
        found = train(case, case.model)
        counters = executor.counters()
        assert_nothing_left(executor)
    assert_same(expected, found)
    # Two steps with one attention mask of 2 x 4 x 128 x 128 floats for each block that is not recomputed.
    blocks = 3 if technique == "offload_disk" else 1
    assert counters["packed_bytes"] >= 2 * blocks * 2 * 4 * 128 * 128 * 4
    assert counters["packed_into_bytes"] * (BITS_PER_FLOAT - 1) < counters["packed_bytes"]


def test_what_is_packed_is_not_moved(tmp_path):
    moved = {}
    for packing in (True, False):
        case, _ = case_with_dropout()
        with executing(case.model, uniform(case.model, "offload_disk", min_bytes=4096), tmp_path) as executor:
            executor._core.set_packing(packing)
            train(case, case.model, steps=1)
            moved[packing] = executor.counters()
    assert moved[False]["packed_bytes"] == 0
    assert moved[True]["packed_bytes"] > 0
    assert moved[False]["offloaded_bytes"] - moved[True]["offloaded_bytes"] == moved[True]["packed_bytes"]


def test_kept_layers_keep_their_masks_as_bits(tmp_path):
    case, twin = case_with_dropout()
    expected = train(case, twin)
    names = [name for name, _ in memscale.model.layers.find_layers(case.model)]
    entries = [(name, 0, "offload_disk" if index == 0 else "keep") for index, name in enumerate(names)]
    with executing(case.model, plan_json(entries, min_bytes=4096), tmp_path) as executor:
        found = train(case, case.model)
        counters = executor.counters()
        assert_nothing_left(executor)
    assert_same(expected, found)
    assert counters["packed_bytes"] >= 2 * len(names) * 2 * 4 * 128 * 128 * 4


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16, torch.float64])
def test_masks_of_any_dtype_come_back(dtype, tmp_path):
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = x.detach() > 0.3
            if dtype is torch.bool:
                return torch.where(mask, x, -x)
            return x * (mask.to(dtype) * 1.25)

    # A matrix product needs both operands in one dtype.
    own = torch.float32 if dtype is torch.bool else dtype

    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        layers = (torch.nn.Sequential(torch.nn.Linear(64, 64), Masked()) for _ in range(2))
        return torch.nn.Sequential(*layers).to(own)

    def run(net: torch.nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(2)
        net(torch.randn(256, 64).to(own)).double().square().sum().backward()
        return [parameter.grad for parameter in net.parameters()]

    net = model()
    expected = run(model())
    with executing(net, uniform(net, "offload_disk", min_bytes=1024), tmp_path) as executor:
        found = run(net)
        counters = executor.counters()
    assert counters["packed_bytes"] >= 256 * 64 * dtype.itemsize
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_a_retained_graph_and_a_second_backward(tmp_path):
    case, twin = case_with_dropout()
    results = []
    for model, plan in ((twin, None), (case.model, uniform(case.model, "offload_disk", min_bytes=4096))):
        torch.manual_seed(3)
        args, kwargs = case.batch(0)
        if plan is None:
            loss = model(*args, **kwargs).loss
            loss.backward(retain_graph=True)
            loss.backward()
        else:
            with executing(model, plan, tmp_path) as executor:
                loss = model(*args, **kwargs).loss
                loss.backward(retain_graph=True)
                loss.backward()
                assert executor.counters()["packed_bytes"] > 0
                del loss
                gc.collect()
                assert_nothing_left(executor)
        results.append([parameter.grad for parameter in model.parameters()])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


def test_a_changed_mask_is_refused_as_by_autograd(tmp_path):
    class Changes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = (x.detach() > 0).float()
            y = x * mask
            mask.add_(1)
            return y

    net = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Linear(64, 64), Changes()), torch.nn.Sequential(torch.nn.Linear(64, 64))
    )
    refused = pytest.raises(RuntimeError, match="modified by an inplace operation")
    with executing(net, uniform(net, "offload_disk", min_bytes=1024), tmp_path), refused:
        net(torch.randn(64, 64)).sum().backward()


def test_wrap_uses_it_and_says_so(tmp_path, caplog):
    case, twin = case_with_dropout()
    ids = torch.randint(0, 64, (16, 256), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}

    def step(model: torch.nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model(**batch).loss.backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        model.zero_grad()
        return gradients

    expected = [step(twin), step(twin)]
    config = memscale.Config(enable_checkpointing=False, force_optimize=True, disk_offload_dir=str(tmp_path))
    with caplog.at_level("DEBUG", logger="memscale"):
        model = memscale.wrap(case.model, config, sample_input=batch)
        found = [step(model), step(model)]
        counters = model._memscale_executor.counters()
        memscale.detach(model)
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(one, other)
    assert counters["packed_bytes"] > 3 * 16 * 4 * 256 * 256 * 4
    assert "kept as bits" in caplog.text


@pytest.mark.parametrize("name", ["bert", "vit", "t5", "eval_encoder"])
def test_models_with_other_masks(name, tmp_path):
    case, twin = twins(MODELS[name])
    expected = train(case, twin)
    with executing(case.model, uniform(case.model, "offload_disk", min_bytes=64), tmp_path) as executor:
        assert_same(expected, train(case, case.model))
        assert_nothing_left(executor)


# -- a plan's choices -----------------------------------------------------------------------

MASK_BYTES = 8 * 4 * 256 * 256 * 4  # of one block's attention; the block's other masks are too small
STEPS = 2


def masked_case() -> tuple[Case, torch.nn.Module, dict[str, Any]]:
    """A model, its twin, and its graph with the facts of an observed loop."""
    case = _lm(gpt2_with_dropout(), shape=(8, 256))
    twin = copy.deepcopy(case.model)
    args, kwargs = case.batch(0)
    graph = trace(case.model, *args, **kwargs)
    observe_loop(graph)
    return case, twin, graph


def plan_at(graph: dict[str, Any], budget_bytes: int) -> str:
    """A plan for a machine without a disk, with slow recomputation and fast packing."""
    hardware = copy.deepcopy(HARDWARE)
    hardware["disk"]["dir"] = ""
    hardware["cpu"].update(pack_bytes_per_s=10**10, unpack_bytes_per_s=10**10, matmul_flops_per_s=10**10)
    config = memscale.Config(memory_budget_gb=budget_bytes / 1e9)
    return _core.plan_make(json.dumps(graph), json.dumps(hardware), config.to_json())


def counters_of_the_same_run(case: Case, twin: torch.nn.Module, plan: str, directory: pathlib.Path) -> dict[str, int]:
    """The counters of steps under the plan. Asserts that they give the twin's results and leave nothing behind."""
    expected = train(case, twin, STEPS)
    with executing(case.model, plan, directory) as executor:
        found = train(case, case.model, STEPS)
        counters = executor.counters()
        assert_nothing_left(executor)
    assert_same(expected, found)
    return counters


@pytest.mark.parametrize("missing", [-1000, 1, 2, 3])
def test_what_a_plan_has_become_bits_does_and_nothing_else(missing, tmp_path):
    case, twin, graph = masked_case()
    need = json.loads(plan_at(graph, 10**12))["pressure"]["need_bytes"]
    # The need without the bytes of `missing` masks, which still take some bytes as bits.
    text = plan_at(graph, need - missing * (MASK_BYTES - MASK_BYTES // 16))
    plan = json.loads(text)
    named = [entry for entry in plan["entries"] if entry.get("packing", {}).get("packed", 0) > 0]
    promised = plan["predicted"].get("packed_bytes", 0)
    assert promised == len(named) * MASK_BYTES
    # If one mask's bytes are missing, the plan packs exactly one. For more, it may also use other techniques.
    assert len(named) == missing if missing == 1 else (len(named) > 0) == (missing > 0)
    counters = counters_of_the_same_run(case, twin, text, tmp_path)
    assert counters["packed_bytes"] == STEPS * promised
    for index, entry in enumerate(plan["entries"]):
        said = "two-valued saved tensors are bit-packed" in _core.plan_explain(text, index)
        assert said == ("packing" in entry)
    explained = _core.plan_explain(text, -1)
    assert f"{sum(entry['packing']['packed'] for entry in named)} of" in explained


def test_the_replay_of_a_plan_has_its_bits():
    _, _, graph = masked_case()
    hardware = copy.deepcopy(HARDWARE)
    need = json.loads(plan_at(graph, 10**12))["pressure"]["need_bytes"]
    text = plan_at(graph, need - 2 * MASK_BYTES)
    plan = json.loads(text)
    replay = _core.plan_simulate(json.dumps(graph), json.dumps(hardware), text)
    assert replay["packed_bytes"] == plan["predicted"]["packed_bytes"] > 0
    assert replay["packing_ns"] > 0
    # A plan of an older version doesn't mention packing; its replay packs nothing.
    for entry in plan["entries"]:
        entry.pop("packing", None)
        entry.pop("selection", None)
    plan.pop("selections")
    for member in ("packed_bytes", "packing_ns"):
        plan["predicted"].pop(member)
    old = _core.plan_simulate(json.dumps(graph), json.dumps(hardware), json.dumps(plan))
    assert old["packed_bytes"] == old["packing_ns"] == 0
    assert old["peak_live_bytes"] > replay["peak_live_bytes"]
    assert old["step_ns"] < replay["step_ns"]


# -- comparisons ----------------------------------------------------------------------------

WIDTH = 512
ROWS = 4 * WIDTH  # so that masks of WIDTH x WIDTH are small compared with the others


class _Compares(torch.nn.Module):
    """A layer that saves a mask with one truth value for each element of its output."""

    item_bytes = 1

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return x + self.masked(y)

    def masked(self, y: torch.Tensor) -> torch.Tensor:
        return y * (y > 0)


class _Chooses(_Compares):
    def masked(self, y: torch.Tensor) -> torch.Tensor:
        return torch.where((y > 0.1) & ~torch.isnan(y), y, -0.5 * y)


class _Fills(_Compares):
    def masked(self, y: torch.Tensor) -> torch.Tensor:
        return y.masked_fill(y.detach().abs() > 1, 0.25)


class _FillsTriangle(_Compares):
    """Makes a causal mask in each forward, by writing to a part of it."""

    def masked(self, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.ones(y.shape[-2:], dtype=torch.bool).triu(1)
        hidden[0] = False
        return y.masked_fill(hidden, 0.0)


class _Multiplies(_Compares):
    item_bytes = 4

    def masked(self, y: torch.Tensor) -> torch.Tensor:
        return y * ((y.detach() > 0).to(y.dtype) * 1.25)


class _AddsMask(_Compares):
    """Adds a mask of zeros and one other number, as attention does."""

    item_bytes = 4

    def masked(self, y: torch.Tensor) -> torch.Tensor:
        return y * torch.zeros_like(y).masked_fill_(y.detach() < 0, -2.0)


def comparing_case(layer: type[_Compares]) -> tuple[Case, torch.nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Sequential(*(layer() for _ in range(4))))
    batch = torch.randn(ROWS, WIDTH)
    case = Case(model, lambda step: ((batch * (step + 1),), {}))
    args, kwargs = case.batch(0)
    graph = trace(case.model, *args, **kwargs)
    observe_loop(graph)
    return case, copy.deepcopy(model), graph


@pytest.mark.parametrize("layer", [_Compares, _Chooses, _Fills, _FillsTriangle, _Multiplies, _AddsMask])
def test_a_plan_counts_on_the_masks_of_comparisons_that_become_bits(layer, tmp_path):
    case, twin, graph = comparing_case(layer)
    mask_bytes = ROWS * WIDTH * layer.item_bytes
    need = json.loads(plan_at(graph, 10**12))["pressure"]["need_bytes"]
    text = plan_at(graph, need - 3 * (mask_bytes - mask_bytes // 6))
    plan = json.loads(text)
    promised = plan["predicted"].get("packed_bytes", 0)
    assert promised >= 3 * mask_bytes
    saved = sum(entry.get("packing", {}).get("saved_bytes", 0) for entry in plan["entries"])
    assert saved >= promised - promised // (8 * layer.item_bytes) - 4 * 64
    counters = counters_of_the_same_run(case, twin, text, tmp_path)
    assert counters["packed_bytes"] == STEPS * promised
    assert counters["packed_into_bytes"] <= STEPS * (promised // (8 * layer.item_bytes) + 4 * 64)
