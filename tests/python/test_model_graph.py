"""memscale.trace() returns a graph that the program can plan from, and doesn't change the model."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

import pytest
import torch
from execute_support import few_threads  # noqa: F401
from program_support import program_path
from torch import nn

import memscale
from memscale import MemScaleError, ProfileError, _core
from memscale.planning.decision_engine import DecisionEngine
from memscale.tracing.model_graph import ModelGraph

pytestmark = pytest.mark.usefixtures("few_threads")
MACHINE = pathlib.Path(__file__).parents[1] / "cli" / "data" / "hardware_disk.json"


class Branchy(nn.Module):
    """Its control flow depends on values, so it can't be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(rows) if rows.sum().item() > 0 else rows


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(3)])


def test_the_program_makes_the_plan_of_the_library_from_a_saved_graph(tmp_path: pathlib.Path) -> None:
    graph = memscale.trace(_model(), torch.randn(512, 256))
    graph.save(tmp_path / "g.json")
    arguments = ["plan", "--graph", tmp_path / "g.json", "--hardware", MACHINE, "--json"]
    printed = subprocess.run([program_path(), *arguments], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == json.loads(DecisionEngine().plan(graph.to_json(), MACHINE.read_text()).to_json())


def test_it_shows_model_arguments_and_layers_and_is_equal_to_itself() -> None:
    graph = memscale.trace(_model(), torch.randn(16, 256))
    assert (graph.model, graph.signature, graph.layers) == ("Sequential", "0:float32[16,256]", ["0", "1", "2"])
    assert repr(graph) == "<ModelGraph Sequential: 3 layers, 0:float32[16,256]>"
    again = memscale.trace(_model(), (torch.randn(16, 256),))
    assert graph == again == ModelGraph(graph.to_json())
    assert len({graph, again, memscale.trace(_model(), torch.randn(8, 256))}) == 2
    _core.graph_check(graph.to_json())


def test_the_optimizer_enters_where_it_is_known() -> None:
    model, rows = _model(), torch.randn(16, 256)

    def state(optimizer: Any = None) -> int:
        return json.loads(memscale.trace(model, rows, optimizer).to_json())["loop"]["optimizer_state_bytes"]

    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert state() >= 2 * parameters
    assert state(torch.optim.SGD(model.parameters(), lr=0.1)) == 0


def test_the_model_is_left_as_it_was_and_may_be_wrapped() -> None:
    model, rows = _model(), torch.randn(16, 256)
    expected, keys = memscale.trace(model, {"input": rows}), set(model.__dict__)
    assert set(model.__dict__) == keys and not model._forward_pre_hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False), sample_input=rows)
    assert memscale.trace(model, {"input": rows}) == expected
    memscale.detach(model)


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(ProfileError, match="Branchy can't be traced without running it"):
        memscale.trace(Branchy(), torch.ones(2, 8))
    with pytest.raises(TypeError, match=r"memscale.trace\(\) takes a torch.nn.Module, not builtins.int"):
        memscale.trace(3, torch.ones(2, 8))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="sample_input does not fit"):
        memscale.trace(_model(), {"rows": torch.ones(2, 8)})
    with pytest.raises(TypeError, match=r"memscale.trace\(\): optimizer must be .* not Config$"):
        memscale.trace(_model(), torch.ones(2, 8), memscale.Config())  # type: ignore[arg-type]
    with pytest.raises(MemScaleError, match=r"graph: \$: expected a graph, found a hardware description"):
        ModelGraph(MACHINE.read_text())
