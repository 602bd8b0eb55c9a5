"""Compiled layers with unusual parts (FlexAttention, custom operators, compiled parts in compiled ones), and machines
that cannot compile. Each keeps the bits of the same code compiled the same way, unwrapped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from execute_support import assert_nothing_left, assert_same, executing, uniform
from test_compiled import Block, Language, frames, train
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import memscale
from memscale import Config

FORCED = Config(force_optimize=True, enable_logging=False)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads(), torch._inductor.config.compile_threads
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    torch._dynamo.reset()
    yield
    torch.set_num_threads(before[0])
    torch._inductor.config.compile_threads = before[1]


def model_of(layer: Callable[[], nn.Module], **how: Any) -> Language:
    torch.manual_seed(0)
    model = Language()
    model.blocks = nn.ModuleList(layer() for _ in range(2))
    for block in model.blocks:
        block.compile(**{"backend": "aot_eager", **how})
    return model


def _nearby(score: torch.Tensor, b: Any, h: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return score - 0.1 * (query - key).abs()


class Attending(Block):
    """FlexAttention with a score function, without a gradient, which torch doesn't compute for it on a CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.norm(x).detach().unflatten(-1, (4, 16)).transpose(1, 2)
        attended = flex_attention(heads, heads, heads, score_mod=_nearby)
        return super().forward(x + attended.transpose(1, 2).flatten(2))


@torch.library.custom_op("memscale_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _keep_input(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0])


doubled.register_autograd(lambda ctx, gradient: gradient * 2 + 0 * ctx.saved_tensors[0], setup_context=_keep_input)

_LIBRARY = torch.library.Library("memscale_tests_kernels", "DEF")
_LIBRARY.define("shifted(Tensor x, float by) -> Tensor")
_LIBRARY.impl("shifted", lambda x, by: x + by, "CPU")
_LIBRARY.impl("shifted", lambda x, by: torch.empty_like(x), "Meta")


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        return torch.ops.memscale_tests_kernels.shifted(x, by)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class Operating(Block):
    """Operators of a library of the user's: one of Python, one registered for a kernel of a device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(_Shift.apply(doubled(x), 0.5))  # type: ignore[no-untyped-call]


class Nested(Block):
    """A compiled layer whose part is compiled as well."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block()
        self.inner.compile(backend="aot_eager")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.inner(x))


class Querying(Block):
    """Saves query, key and value, which are views of one storage as the layer is written, and pieces of it compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        return super().forward(x + attended.transpose(1, 2).flatten(2))


class Showing(Querying):
    """Somebody else has its query, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        self.shown = query
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        return Block.forward(self, x + attended.transpose(1, 2).flatten(2))


PARTS = [Attending, Operating, Nested, Querying, Showing]


@pytest.mark.parametrize("technique", ["recompute", "offload_disk"])
@pytest.mark.parametrize("layer", PARTS)
def test_unusual_parts_keep_their_bits_under_every_technique(
    layer: Callable[[], nn.Module], technique: str, tmp_path: Path
) -> None:
    expected = train(model_of(layer), 2)
    before, model = frames(), model_of(layer)
    compiled_once = frames()
    with executing(model, uniform(model, technique), tmp_path) as executor:
        assert_same(train(model, 2), expected)
        counters = executor.counters()
        assert counters["recomputed_layers"] if technique == "recompute" else counters["fetched_bytes"]
        assert_nothing_left(executor)
    assert compiled_once == before  # making a model compiles nothing


@pytest.mark.parametrize("layer", PARTS)
def test_unusual_parts_are_planned_by_name(layer: Callable[[], nn.Module]) -> None:
    """The explanation names the layers, and their plan knows what they save."""
    expected = train(model_of(layer), 2)
    torch._dynamo.reset()
    model = memscale.wrap(model_of(layer), FORCED)
    assert_same(train(model, 2), expected)
    graph = json.loads(model._memscale_executor._planner.documents[0])
    flags = {node["name"]: node["flags"] for node in graph["nodes"] if node["name"]}
    assert all({"compiled", "measured"} <= set(found) for found in flags.values())
    memscale.detach(model)


def test_flex_attention_is_planned_in_layers_that_are_not_compiled() -> None:
    """It compiles itself, and refuses to do that under the mode that profiles real steps."""

    def attending() -> Language:
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = Language()
        model.blocks = nn.ModuleList(Attending() for _ in range(2))
        return model

    expected = train(attending(), 2)
    model = memscale.wrap(attending(), FORCED)
    assert_same(train(model, 2), expected)
    graph = json.loads(model._memscale_executor._planner.documents[0])
    assert all("measured" in node["flags"] for node in graph["nodes"] if node["name"])
    memscale.detach(model)


def test_a_compiled_parent_of_compiled_layers_is_compiled_layer_by_layer() -> None:
    expected = train(model_of(Block), 2)
    torch._dynamo.reset()
    model = model_of(Block)
    model.compile(backend="aot_eager")
    memscale.wrap(model, FORCED)
    assert_same(train(model, 2), expected)
    memscale.detach(model)


def _saved_bytes(layer: nn.Module, x: torch.Tensor) -> int:
    """Bytes of the storages that autograd saves for a layer, each counted once; those of parameters are not."""
    found: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(x)
    own = {parameter.untyped_storage()._cdata for parameter in layer.parameters()}
    del output
    return sum(count for storage, count in found.items() if storage not in own)


def test_pieces_of_one_storage_move_as_a_whole_and_once(tmp_path: Path) -> None:
    model = model_of(Querying)
    train(model, 1)
    x = torch.randn(4, 32, 64, requires_grad=True) * 1
    expected = sum(_saved_bytes(block, x) for block in model.blocks)
    with executing(model, uniform(model, "offload_disk", root="keep"), tmp_path) as executor:
        before = executor.counters()["offloaded_bytes"]
        train(model, 1)
        moved = executor.counters()["offloaded_bytes"] - before
    bits = 2 * 4 * 32 * 64  # the masks of dropout may become bits
    assert expected - bits <= moved <= expected


# ---- machines that can't compile ----------------------------------------------------------------


@contextlib.contextmanager
def without_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    with monkeypatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
        patch.delenv("CXX", raising=False)
        with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False}):
            yield
    torch._dynamo.reset()


@contextlib.contextmanager
def with_unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Below a file nothing can be made, by any user."""
    (tmp_path / "file").write_text("")
    torch._dynamo.reset()
    with monkeypatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("machine", [without_compiler, with_unwritable_cache])
def test_a_machine_that_cannot_compile_raises_torchs_own_error(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without memscale. The model then trains, once it is compiled otherwise."""
    model = model_of(Block, backend="inductor")
    with machine(tmp_path, monkeypatch):
        with pytest.raises(Exception) as plain:
            train(model, 1)
        torch._dynamo.reset()
        memscale.wrap(model, FORCED)
        with pytest.raises(Exception) as wrapped:
            train(model, 1)
        assert wrapped.type is plain.type
    model.zero_grad()
    for block in model.blocks:
        block.compile(backend="aot_eager")
    assert_same(train(model, 2), train(model_of(Block), 2))
    memscale.detach(model)


def test_torchs_fall_back_to_uncompiled_code_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `suppress_errors` torch runs as written what it can't compile; so do replays."""
    expected = train(_uncompiled(), 2)
    with without_compiler(tmp_path, monkeypatch), torch._dynamo.config.patch(suppress_errors=True):
        model = memscale.wrap(model_of(Block, backend="inductor"), FORCED)
        assert_same(train(model, 2), expected)
        memscale.detach(model)


def _uncompiled() -> nn.Module:
    torch.manual_seed(0)
    model = Language()
    model.blocks = nn.ModuleList(Block() for _ in range(2))
    return model
