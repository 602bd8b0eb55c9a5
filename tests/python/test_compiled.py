"""Models compiled by torch.compile: bits and frame counts of the same layers compiled the same way, unwrapped.

A result that has lost its compiled code silently would have eager's bits; so each comparison also asserts that it
differs from an eager run and that torch's compiler saw no frame more."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from execute_support import assert_nothing_left, assert_same, executing, gradients, hook_tables, uniform
from torch import nn
from torch._dynamo.utils import counters

import memscale
from memscale import Config

FORCED = Config(force_optimize=True, enable_logging=False)
TOLD = Config(force_optimize=True)
TECHNIQUES = ("recompute", "recompute_joined", "recompute_segment", "offload_disk", "recompute_offload_input", "mixed")


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)), approximate="tanh")))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(97, 64), nn.Linear(64, 97)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


def language() -> Language:
    torch.manual_seed(0)
    return Language()


def compiled(model: Language | None = None, **how: Any) -> Language:
    model = model or language()
    for block in model.blocks:
        block.compile(**how)
    return model


TOKENS = torch.randint(0, 97, (4, 32), generator=torch.Generator().manual_seed(1))


def train(model: nn.Module, steps: int = 3, batch: torch.Tensor = TOKENS) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Any] = []
    for step in range(steps):
        torch.manual_seed(step)
        loss = model(batch, batch)
        loss.backward()
        seen += [loss.detach().clone(), {name.replace("_orig_mod.", ""): g for name, g in gradients(model).items()}]
        optimizer.step()
        optimizer.zero_grad()
    return seen


def frames() -> tuple[dict[str, int], int]:
    """The frames that torch's compiler has looked at and compiled, and its graphs, since the process began."""
    return dict(counters["frames"]), counters["stats"]["unique_graphs"]


@pytest.fixture(scope="module")
def plain() -> Iterator[list[Any]]:
    """Three steps of the layers compiled one by one, unwrapped. The tests after it compile nothing more."""
    before = torch.get_num_threads(), torch._inductor.config.compile_threads
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    expected = train(compiled())
    assert_same(expected, train(compiled()))
    with pytest.raises(AssertionError):
        assert_same(expected, train(language()))
    yield expected
    torch.set_num_threads(before[0])
    torch._inductor.config.compile_threads = before[1]


@pytest.fixture(autouse=True)
def one_thread(plain: list[Any]) -> None:
    torch.set_num_threads(1)


def replace_in_list(model: Language) -> None:
    for index in range(2):
        model.blocks[index] = torch.compile(model.blocks[index])


# ---- layers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_compiled_layers_keep_their_bits(technique: str, plain: list[Any], tmp_path: Path) -> None:
    model, before = compiled(), frames()
    with executing(model, uniform(model, technique), tmp_path) as executor:
        assert_same(train(model), plain)
        done = executor.counters()
        assert_nothing_left(executor)
    assert frames() == before
    assert done["recomputed_layers"] if "recompute" in technique else done["fetched_bytes"]


@pytest.mark.parametrize("how", [compiled, replace_in_list])
@pytest.mark.parametrize("first", ["compile", "wrap"])
def test_layers_are_compiled_before_wrap_or_after_it(
    how: Callable[[Any], Any], first: str, plain: list[Any], tmp_path: Path
) -> None:
    model, before = language(), frames()
    if first == "compile":
        how(model)
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        if first == "wrap":
            how(model)
        assert_same(train(model), plain)
        assert executor.counters()["recomputed_layers"] == 6
    assert frames() == before
    assert_same(train(how(language()) or model, 0), [])


def test_layers_compiled_between_steps_are_hooked_anew(plain: list[Any], tmp_path: Path) -> None:
    model, before = language(), frames()
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        train(model, 1)
        model.load_state_dict(language().state_dict())
        compiled(model)
        assert_same(train(model), plain)
        assert executor.counters()["recomputed_layers"] == 8
    assert frames() == before


def test_detach_leaves_the_layers_compiled(plain: list[Any]) -> None:
    model, before = compiled(), frames()
    attributes = hook_tables(model)
    memscale.wrap(model, FORCED, sample_input=(TOKENS, TOKENS))
    assert "recompute" in str(model._memscale_executor.plan)
    memscale.detach(model)
    assert hook_tables(model) == attributes
    assert_same(train(model), plain)
    assert frames() == before


def test_a_planned_run_has_the_exact_head_and_no_selective(plain: list[Any]) -> None:
    model, before = compiled(), frames()
    memscale.wrap(model, FORCED)
    assert_same(train(model), plain)
    plan = json.loads(model._memscale_executor.plan.to_json())
    memscale.detach(model)
    assert frames() == before
    assert {option["name"]: option["chosen"] for option in plan["step_options"]}["exact_loss_head"]
    used = {entry["technique"] for entry in plan["entries"] if entry["name"]}
    assert used != {"keep"} and not any(name.startswith("selective") for name in used)


def test_a_trace_sees_the_layers_as_written_and_leaves_their_code_compiled(plain: list[Any]) -> None:
    model, before = compiled(), frames()
    graph = json.loads(memscale.trace(model, (TOKENS, TOKENS)).to_json())
    flags = {node["name"]: node["flags"] for node in graph["nodes"] if node["name"]}
    assert all("compiled" in flags[f"blocks.{index}"] for index in range(2))
    assert_same(train(model), plain)
    assert frames() == before


def test_a_trace_finds_compiled_functions_in_a_layer() -> None:
    calls = []

    @torch.compile(backend="eager")
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.relu() * 2

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return self.out(inner(self.linear(x)))

    model = nn.Sequential(Layer(), Layer())
    graph = json.loads(memscale.trace(model, (torch.randn(2, 8),)).to_json())
    assert all("compiled" in node["flags"] for node in graph["nodes"] if node["name"])
    before = frames()
    model(torch.randn(2, 8))
    assert frames()[0]["ok"] == before[0]["ok"] + 1


# ---- whole models -------------------------------------------------------------------------------


def _wrap_the_compiled(model: nn.Module) -> nn.Module:
    return memscale.wrap(torch.compile(model), TOLD)


def _compile_the_wrapped(model: nn.Module) -> nn.Module:
    return torch.compile(memscale.wrap(model, TOLD))


def _wrap_what_is_compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return memscale.wrap(model, TOLD)


def _compile_in_place_what_is_wrapped(model: nn.Module) -> nn.Module:
    memscale.wrap(model, TOLD)
    model.compile()
    return model


WHOLE = [_wrap_the_compiled, _compile_the_wrapped, _wrap_what_is_compiled_in_place, _compile_in_place_what_is_wrapped]


@pytest.mark.parametrize("how", WHOLE)
def test_a_whole_model_is_compiled_layer_by_layer(
    how: Callable[[nn.Module], nn.Module], plain: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "memscale")
    inner, before = language(), frames()
    model = how(inner)
    assert_same(train(model), plain)
    assert frames() == before
    executor = model._memscale_executor
    assert executor.counters()["recomputed_layers"] or executor.counters()["offloaded_bytes"]
    lines = [line for line in caplog.messages if "compiled as a whole" in line]
    assert len(lines) == 1 and "last bits" in lines[0]
    memscale.detach(model)
    assert inner.blocks[0].__dict__.get("_compiled_call_impl") is None
    assert "_memscale_executor" not in inner.__dict__


def test_a_compiled_part_with_layers_in_it_is_compiled_layer_by_layer(plain: list[Any]) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = language()

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return self.inner(tokens, labels)

    model, before = Outer(), frames()
    model.inner = torch.compile(model.inner)
    memscale.wrap(model, FORCED)
    seen = train(model)
    assert frames() == before
    for place in range(1, len(seen), 2):
        seen[place] = {name.removeprefix("inner."): value for name, value in seen[place].items()}
    assert_same(seen, plain)
    memscale.detach(model)


def test_copies_of_a_wrapped_compiled_model_are_free_of_hooks(plain: list[Any]) -> None:
    model = memscale.wrap(compiled(), FORCED)
    train(model, 1)
    twin = copy.deepcopy(model)
    memscale.detach(model)
    assert all(block.__dict__.get("_compiled_call_impl") is None for block in twin.blocks)
    assert not any(block._forward_pre_hooks or "__getstate__" in block.__dict__ for block in twin.blocks)
    twin.load_state_dict(language().state_dict())
    before = frames()
    assert_same(train(compiled(twin)), plain)
    assert frames() == before


# ---- refusals -------------------------------------------------------------------------------------


def test_one_graph_of_the_whole_model_is_refused() -> None:
    model = language()
    model.compile(fullgraph=True)
    with pytest.raises(memscale.IntegrationError, match="fullgraph=True"):
        memscale.wrap(model, FORCED)
    assert "_memscale_executor" not in model.__dict__ and model.__dict__["_compiled_call_impl"] is not None
    later = torch.compile(memscale.wrap(language(), FORCED), fullgraph=True)
    with pytest.raises(memscale.IntegrationError, match="layer.compile"):
        later(TOKENS, TOKENS)
    memscale.detach(later)


def test_layers_compiled_to_one_graph_each_work(plain: list[Any], tmp_path: Path) -> None:
    model = compiled(fullgraph=True)
    with executing(model, uniform(model, "recompute"), tmp_path):
        assert_same(train(model), plain)


@pytest.mark.parametrize("how", [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}])
def test_device_graphs_are_refused(how: dict[str, Any]) -> None:
    for model in (compiled(**how), torch.compile(language(), **how)):
        with pytest.raises(memscale.IntegrationError, match="max-autotune-no-cudagraphs"):
            memscale.wrap(model, FORCED)
    wrapped = memscale.wrap(language(), FORCED)
    compiled(wrapped, **how)
    with pytest.raises(memscale.IntegrationError, match="CUDA graphs"):
        wrapped(TOKENS, TOKENS)
    memscale.detach(wrapped)


def test_compiled_autograd_is_refused() -> None:
    model = memscale.wrap(compiled(backend="aot_eager"), FORCED)
    asked = torch._dynamo.config.patch(compiled_autograd=True)
    with asked, pytest.raises(memscale.IntegrationError, match="compiled autograd"):
        model(TOKENS, TOKENS)
    model(TOKENS, TOKENS).backward()
    memscale.detach(model)


def _no_code(*_: Any) -> Any:
    raise RuntimeError("no compiler on this machine")


def test_saved_tensor_hooks_that_are_graph_modules_act_alone(caplog: pytest.LogCaptureFixture) -> None:
    """torch compiles such hooks into the layers; memscale stands aside, says so, and acts again after them."""
    pack = torch.fx.symbolic_trace(lambda tensor: tensor.to(torch.bfloat16))
    unpack = torch.fx.symbolic_trace(lambda tensor: tensor.to(torch.float32))

    def train_under_hooks(model: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(0)
        hidden = torch.randn(4, 32, 64)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = model(hidden).square().mean()
        loss.backward()
        found = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
        model.zero_grad()
        return found

    def blocks() -> nn.Module:
        model = compiled(backend="aot_eager").blocks
        return nn.Sequential(*model)

    expected = train_under_hooks(blocks())
    model = memscale.wrap(blocks(), FORCED)
    with caplog.at_level(logging.WARNING, "memscale"):
        found = train_under_hooks(model)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert "saved-tensor hooks of someone else are active" in caplog.text
    model(torch.randn(4, 32, 64)).sum().backward()
    assert sum(model._memscale_executor.counters()[name] for name in ("recomputed_layers", "offloaded_storages")) > 0
    memscale.detach(model)


def test_a_backend_that_fails_raises_as_without_memscale(tmp_path: Path) -> None:
    """In forward torch's own error comes; the model is left as it was, and trains if the compiler works again."""
    model = compiled(backend=_no_code)
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no compiler on this machine"):
            model(TOKENS, TOKENS)
        assert_nothing_left(executor)
        expected = train(compiled(backend="aot_eager"))
        assert_same(train(compiled(model, backend="aot_eager")), expected)
        assert executor.counters()["recomputed_layers"] == 6


def test_a_failure_to_compile_in_a_replay_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    fails = [False]

    def backend(graph: Any, inputs: Any) -> Any:
        return _no_code() if fails[0] else torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    model = compiled(backend=backend)
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        loss = model(TOKENS, TOKENS)
        torch._dynamo.reset()  # the replay has to compile the layers again
        fails[0] = True
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no compiler on this machine"):
            loss.backward()
        fails[0] = False
        del loss
        assert_nothing_left(executor)
        model.zero_grad()
        expected = train(compiled(backend="aot_eager"))
        assert_same(train(model), expected)


def test_layers_over_the_recompile_limit_run_as_torch_runs_them(tmp_path: Path) -> None:
    """torch then runs them uncompiled; their replays too."""
    with torch._dynamo.config.patch(recompile_limit=1):
        torch._dynamo.reset()
        expected = [
            train(model, 1, TOKENS[:, :length]) for model in [compiled(backend="aot_eager")] for length in (8, 16, 24)
        ]
        torch._dynamo.reset()
        model = compiled(backend="aot_eager")
        with executing(model, uniform(model, "recompute"), tmp_path) as executor:
            assert_same([train(model, 1, TOKENS[:, :length]) for length in (8, 16, 24)], expected)
            assert executor.counters()["recomputed_layers"] == 6
    torch._dynamo.reset()


def test_a_step_compiled_around_the_model_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "memscale")
    model = memscale.wrap(language(), TOLD)

    @torch.compile(backend="eager")
    def step(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens, tokens) * 1.0

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        step(TOKENS).backward()
        assert model.words.weight.grad is not None
        optimizer.step()
    assert sum("where memscale is inactive" in line for line in caplog.messages) == 1
    memscale.detach(model)


# ---- loops ------------------------------------------------------------------------------------------


def loop(model: nn.Module) -> list[Any]:
    """Accumulation, evaluation between steps, dropout that changes, autocast."""
    seen: list[Any] = []
    for step in range(2):
        torch.manual_seed(step)
        for rate in (0.1, 0.3):
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = rate
            model(TOKENS, TOKENS).backward()
        with torch.no_grad():
            seen.append(model.eval()(TOKENS, TOKENS).clone())
        model.train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(TOKENS, TOKENS)
        loss.backward()
        seen.append(gradients(model))
        model.zero_grad()
    return seen


def lengths(model: nn.Module) -> list[Any]:
    """Two lengths before one backward, then one in each step."""
    seen: list[Any] = []
    for step in range(3):
        torch.manual_seed(step)
        loss = model(TOKENS, TOKENS)
        if step < 2:
            loss = loss + model(TOKENS[:, :16], TOKENS[:, :16])
        loss.backward()
        seen.append(gradients(model))
        model.zero_grad()
    return seen


@pytest.mark.parametrize("technique", ["recompute", "offload_disk"])
def test_loops_keep_their_bits_and_compile_nothing_more(technique: str, looped: list[Any], tmp_path: Path) -> None:
    before, model = frames(), compiled()
    with executing(model, uniform(model, technique), tmp_path) as executor:
        assert_same(loop(model), looped)
        assert executor.counters()["recomputed_layers"] or technique != "recompute"
        assert_nothing_left(executor)
    assert frames() == before


@pytest.fixture(scope="module")
def looped(plain: list[Any]) -> list[Any]:
    return loop(compiled())


@pytest.mark.parametrize("technique", ["recompute", "recompute_segment"])
def test_several_shapes_before_one_backward_keep_their_bits(technique: str, tmp_path: Path) -> None:
    """The replays of the first shape are run before the second one is compiled; then the layers are held."""
    torch._dynamo.reset()
    expected = lengths(compiled(backend="aot_eager"))
    torch._dynamo.reset()  # the wrapped run compiles in the same order
    model = compiled(backend="aot_eager")
    with executing(model, uniform(model, technique), tmp_path) as executor:
        assert_same(lengths(model), expected)
        assert executor.counters()["recomputed_layers"] == 2 and len(executor._core.held_layers()) == 2
        assert_nothing_left(executor)
    torch._dynamo.reset()


class Broken(Block):
    """A layer with a graph break and a part that is never compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(self.norm(x))
        torch._dynamo.graph_break()
        return x + self.drop(self.down(_as_written(hidden)))


@torch.compiler.disable
def _as_written(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x)


@pytest.mark.parametrize("technique", ["recompute", "offload_disk"])
def test_graph_breaks_and_disabled_parts_in_a_layer_keep_their_bits(technique: str, tmp_path: Path) -> None:
    def broken() -> Language:
        model = language()
        model.blocks = nn.ModuleList(Broken() for _ in range(2))
        for inner in model.blocks:
            inner.load_state_dict(language().blocks[0].state_dict())
        return compiled(model, backend="aot_eager")

    expected = train(broken())
    before, model = frames(), broken()
    with executing(model, uniform(model, technique), tmp_path) as executor:
        assert_same(train(model), expected)
        assert executor.counters()["recomputed_layers"] or technique != "recompute"
        assert_nothing_left(executor)
    assert frames() == before
