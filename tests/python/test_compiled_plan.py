"""Plans of compiled layers: what they save is measured before the plan, and so budgets hold.

Each measurement must leave the model, the random states and torch's compiler as a plain run has them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from execute_support import assert_same, gradients
from test_compiled import TOKENS, Block, Language, frames, language, train
from torch import nn

import memscale
from memscale import BudgetInfeasibleError, Config
from memscale.tracing import compiled_calls

ROOMY = Config(memory_budget_gb=64.0, enable_logging=False)


def compiled(model: nn.Module, backend: Any = "aot_eager") -> nn.Module:
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend=backend)
    return model


def graph_of(model: nn.Module) -> dict[str, Any]:
    text = model._memscale_executor._planner.documents[0]
    assert text is not None
    graph: dict[str, Any] = json.loads(text)
    return graph


def nodes_of(graph: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in graph["nodes"] if node["name"]}


def saved_bytes(graph: dict[str, Any], name: str) -> list[int]:
    """Of the storages that the layer saves, beside those that cross nodes."""
    profile = graph["profiles"][nodes_of(graph)[name]["profile"]]
    local = [event[1] for event in profile["forward"] if event[0] == "save" and event[1] >= profile["external_count"]]
    return sorted(profile["storage_bytes"][storage] for storage in local)


def really_saved(model: nn.Module, batch: torch.Tensor) -> list[int]:
    """Bytes of the storages that a block's compiled code saves, beside parameters and its input."""
    found: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    hidden = model.words(batch)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.blocks[0](hidden)
    for tensor in (hidden, *model.parameters()):
        found.pop(tensor.untyped_storage()._cdata, None)
    del output
    return sorted(found.values())


def test_a_plan_knows_what_compiled_layers_save() -> None:
    model = compiled(language())
    expected = really_saved(model, TOKENS)
    memscale.wrap(model, ROOMY)
    train(model, 1)
    graph = graph_of(model)
    assert all("measured" in node["flags"] for node in nodes_of(graph).values())
    assert saved_bytes(graph, "blocks.0") == expected
    written = json.loads(memscale.trace(language(), (TOKENS, TOKENS)).to_json())
    assert saved_bytes(written, "blocks.0") != expected  # the trace alone does not know it
    profile = graph["profiles"][nodes_of(graph)["blocks.0"]["profile"]]
    assert all(time_ns > 0 for time_ns in profile["measured_ns"])
    memscale.detach(model)


def test_the_trace_of_a_wrapped_model_sees_into_compiled_layers() -> None:
    """Without a layer's input, its output and its random numbers no plan could recompute it."""
    written = json.loads(memscale.trace(language(), (TOKENS, TOKENS)).to_json())
    model = memscale.wrap(compiled(language()), ROOMY)
    train(model, 1)
    graph = graph_of(model)
    for name, node in nodes_of(graph).items():
        same = nodes_of(written)[name]
        assert set(node["flags"]) - {"compiled", "measured"} == set(same["flags"])
        assert node["externals"] == same["externals"]
        assert graph["profiles"][node["profile"]]["inputs"] == written["profiles"][same["profile"]]["inputs"] != []
    memscale.detach(model)


def test_compiled_layers_after_the_first_are_recomputed_under_a_small_budget() -> None:
    model, many = language(), TOKENS.repeat(64, 1)
    model.blocks.extend(Block() for _ in range(2))
    with pytest.raises(BudgetInfeasibleError) as refused:
        memscale.wrap(
            compiled(model), Config(memory_budget_gb=0.01, enable_offloading=False), sample_input=(many, many)
        )
    assert sum(int(number) for number in re.findall(r"(\d+) x recompute", str(refused.value))) >= 3


@pytest.mark.parametrize("when", ["at the first forward", "at wrap"])
def test_measuring_leaves_no_trace(when: str) -> None:
    expected = train(compiled(language()))
    before = frames()
    expected_frames = (train(compiled(language())), frames())[1]
    model = compiled(language())
    torch.manual_seed(3)
    state = torch.get_rng_state()
    sample = (TOKENS, TOKENS) if when == "at wrap" else None
    memscale.wrap(model, ROOMY, sample_input=sample)
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(train(model), expected)
    assert "measured" in nodes_of(graph_of(model))["blocks.0"]["flags"]
    memscale.detach(model)
    once = frames()[1] - expected_frames[1]
    assert once == expected_frames[1] - before[1]  # as many graphs as a plain run


def test_layers_that_torch_leaves_uncompiled_get_no_code_of_memscale_compiled() -> None:
    """torch compiles none of its own containers' code, and would compile what such a layer calls."""

    def containers() -> nn.Module:
        torch.manual_seed(0)
        model = Language()
        model.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(2))
        return compiled(model)

    before = frames()
    expected = train(containers())
    plain = frames()
    model = memscale.wrap(containers(), ROOMY)
    assert_same(train(model), expected)
    wrapped = frames()
    assert "measured" in nodes_of(graph_of(model))["blocks.0"]["flags"]
    assert wrapped[1] - plain[1] == plain[1] - before[1]
    assert wrapped[0].get("total", 0) - plain[0].get("total", 0) == plain[0].get("total", 0) - before[0].get("total", 0)
    memscale.detach(model)


class Counting(Block):
    """A layer with statistics, a counter and a cached tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = nn.BatchNorm1d(64)
        self.calls, self.last = 0, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = super().forward(self.statistics(x.flatten(0, 1)).view_as(x))
        return self.last


def counting() -> nn.Module:
    torch.manual_seed(0)
    model = Language()
    model.blocks = nn.ModuleList(Counting() for _ in range(2))
    return model


def test_statistics_attributes_and_gradients_stay_as_they_were() -> None:
    expected_model = compiled(counting())
    expected = train(expected_model)
    model = compiled(counting())
    seen: list[torch.Tensor] = []
    model.blocks[0].up.weight.register_hook(seen.append)
    memscale.wrap(model, ROOMY)
    assert_same(train(model), expected)
    assert "measured" in nodes_of(graph_of(model))["blocks.0"]["flags"]
    assert_same(list(model.buffers()), list(expected_model.buffers()))
    assert len(seen) == 3  # the caller's hook saw the three steps only
    memscale.detach(model)


def test_layers_that_differ_are_measured_apart() -> None:
    model = language()
    model.blocks[1].drop.p = 0.0  # needs no mask
    compiled(model)
    memscale.wrap(model, ROOMY)
    train(model, 1)
    graph = graph_of(model)
    assert saved_bytes(graph, "blocks.0") != saved_bytes(graph, "blocks.1")
    memscale.detach(model)


def test_equal_layers_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    measure = compiled_calls._measure
    monkeypatch.setattr(compiled_calls, "_measure", lambda *given: measured.append(given) or measure(*given))
    model = language()
    model.blocks.append(Block())  # the first and the last block have other neighbours than this one
    memscale.wrap(compiled(model), ROOMY)
    train(model, 1)
    assert len(measured) == 1
    assert len({tuple(saved_bytes(graph_of(model), f"blocks.{i}")) for i in range(len(model.blocks))}) == 1
    memscale.detach(model)


def test_a_layer_with_hooks_is_planned_as_written(caplog: pytest.LogCaptureFixture) -> None:
    """A hook of the caller's must not see a call that the caller did not make."""
    caplog.set_level(logging.DEBUG, "memscale")
    model, seen = compiled(language()), []
    model.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    memscale.wrap(model, Config(memory_budget_gb=64.0))
    traced = len(seen)
    train(model, 1)
    flags = {name: node["flags"] for name, node in nodes_of(graph_of(model)).items()}
    assert "measured" not in flags["blocks.0"]
    assert any("blocks.0" in line and "hooks" in line for line in caplog.messages)
    assert len(seen) - traced <= 2  # the trace's and the step's
    memscale.detach(model)


def test_a_backend_that_fails_leaves_the_plan_as_written_and_raises_in_the_step() -> None:
    def backend(*_: Any) -> Any:
        raise RuntimeError("no compiler on this machine")

    model = compiled(language(), backend)
    memscale.wrap(model, ROOMY)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no compiler on this machine"):
        train(model, 1)
    assert "measured" not in nodes_of(graph_of(model))["blocks.0"]["flags"]
    assert_same(train(compiled(model)), train(compiled(language())))
    memscale.detach(model)


class Bypassing(torch.autograd.Function):
    """Keeps a tensor for backward without saved-tensor hooks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.kept = x.new_zeros(1 << 18)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2 + ctx.kept[0]


class Holding(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return _bypassing(super().forward(x))


@torch.compiler.disable
def _bypassing(x: torch.Tensor) -> torch.Tensor:
    return Bypassing.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def test_bytes_that_bypass_hooks_are_counted_as_kept(tmp_path: Path) -> None:
    model = language()
    model.blocks = nn.ModuleList(Holding() for _ in range(2))
    compiled(model)
    memscale.wrap(model, ROOMY)
    train(model, 1)
    graph = graph_of(model)
    profile = graph["profiles"][nodes_of(graph)["blocks.0"]["profile"]]
    freed = [event[1] for event in profile["backward"] if event[0] == "free" and event[1] >= profile["external_count"]]
    made = {event[1] for event in profile["forward"] if event[0] == "alloc"}
    held = [profile["storage_bytes"][storage] for storage in freed if storage in made]
    assert any((1 << 20) <= size <= (1 << 20) + (64 << 10) for size in held)
    memscale.detach(model)


def test_gradients_are_none_after_a_sample_was_measured() -> None:
    model = compiled(language())
    memscale.wrap(model, ROOMY, sample_input=(TOKENS, TOKENS))
    assert not any(gradient is not None for gradient in gradients(model).values())
    assert "measured" in nodes_of(graph_of(model))["blocks.0"]["flags"]
    memscale.detach(model)
