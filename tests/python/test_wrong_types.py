"""If an argument of a public function has a wrong type, the function raises an exception that tells the user so, and
changes none of its arguments. Each argument is tested in turn."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import memscale
from memscale import Config, optim, policy, techniques
from memscale.autotuning import AutoTuner, OOMPredictor, estimate_savings
from memscale.planning.decision_engine import DecisionEngine
from memscale.planning.execution_plan import ExecutionPlan
from memscale.tracing.model_graph import ModelGraph
from memscale.tracing.profiler import MemoryProfiler

# Exceptions that tell a user that an argument is wrong; an AttributeError or KeyError from inside doesn't.
_TOLD = (TypeError, ValueError, OSError, memscale.MemScaleError)

_WRONG: dict[str, Any] = {
    "None": None,
    "int": 3,
    "float": 2.5,
    "str": "text",
    "bytes": b"bytes",
    "list": [1],
    "dict": {"a": 1},
    "object": object(),
    "class": nn.Linear,
    "dtype": torch.float32,
    "nan": float("nan"),
}


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2)])


def _x() -> torch.Tensor:
    return torch.ones(4, 16)


def _checkpoint() -> str:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(_net().state_dict(), "net.safetensors")
    return "net.safetensors"


@functools.cache
def _documents() -> tuple[str, str, str]:
    """Graph, hardware and plan of `_net`."""
    import json

    config = Config(force_optimize=True)
    graph = memscale.trace(_net(), _x()).to_json()
    hardware = json.dumps(MemoryProfiler(config).hardware())
    return graph, hardware, DecisionEngine(config).plan(graph, hardware).to_json()


def _sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(_net().parameters(), lr=0.1)


class Call:
    """A function with right arguments; `taken` lists, by argument, the wrong types that it accepts anyway."""

    def __init__(self, function: Callable[..., Any], arguments: Callable[[], dict[str, Any]], **taken: str) -> None:
        self.function = function
        self.arguments = arguments
        self.taken = {name: set(values.split()) for name, values in taken.items()}


def _optimize(**arguments: Any) -> None:
    with memscale.optimize(**arguments):
        pass


def _stream(**arguments: Any) -> None:
    with memscale.stream(**arguments):
        pass


def _connect(**arguments: Any) -> None:
    try:
        memscale.connect(**arguments)
    finally:
        memscale.disconnect()


def _of_an_executor(name: str) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        model = memscale.wrap(_net(), Config(force_optimize=True, enable_logging=False), _x())
        try:
            return getattr(model._memscale_executor, name)(**arguments)
        finally:
            memscale.detach(model)

    return call


def _method(make: Callable[[], Any], name: str) -> Callable[..., Any]:
    return lambda **arguments: getattr(make(), name)(**arguments)


def _engine() -> DecisionEngine:
    return DecisionEngine()


_LABELS = torch.zeros(4, dtype=torch.int64)
_NUMBERS = "int float nan"

CALLS: dict[str, Call] = {
    "wrap": Call(
        memscale.wrap,
        lambda: {
            "target": _net(),
            "config": Config(),
            "async_offload": True,
            "async_config": memscale.AsyncOffloadConfig(),
        },
        config="None",
        async_offload="None",
        async_config="None",
    ),
    "detach": Call(memscale.detach, lambda: {"model": _net()}),
    "optimize": Call(
        _optimize, lambda: {"model": _net(), "optimizer": _sgd(), "config": Config()}, optimizer="None", config="None"
    ),
    "apply_all_optimizations": Call(
        memscale.apply_all_optimizations,
        lambda: {"model": _net(), "optimizer": _sgd(), "config": Config()},
        config="None",
    ),
    "plan": Call(memscale.plan, lambda: {"model": _net(), "sample_input": _x(), "config": Config()}, config="None"),
    "trace": Call(
        memscale.trace, lambda: {"model": _net(), "sample_input": _x(), "optimizer": _sgd()}, optimizer="None"
    ),
    "stream": Call(_stream, lambda: {"directory": "."}, directory="None str"),
    "load_checkpoint": Call(
        memscale.load_checkpoint,
        lambda: {"model": _net(), "checkpoint": _checkpoint(), "sha256": {}, "strict": True},
        sha256="None",
    ),
    "check_checkpoint": Call(
        memscale.check_checkpoint,
        lambda: {"checkpoint": _checkpoint(), "sha256": {}},
        sha256="None",
    ),
    "connect": Call(
        _connect,
        lambda: {
            "url": "http://127.0.0.1:9",
            "token": "msr_token",
            "project": "project",
            "name": "name",
            "machine": "machine",
            "spool_dir": "spool",
            "spool_mb": 1.0,
            "exit_seconds": 0.0,
            "allow_http": False,
        },
        token="str",
        project="None str",
        name="None str",
        machine="None str",
        spool_dir="None str",
        spool_mb="int float bool",
        exit_seconds="int float bool",
    ),
    "OptimizationMode": Call(memscale.OptimizationMode, lambda: {"value": "balanced"}),
    "enable_telemetry": Call(memscale.enable_telemetry, lambda: {"endpoint": "http://127.0.0.1:9"}, endpoint="None"),
    "OOMPredictor": Call(
        OOMPredictor,
        lambda: {"model": _net(), "config": Config(), "optimizer": _sgd()},
        config="None",
        optimizer="None",
    ),
    "OOMPredictor.predict": Call(_method(lambda: OOMPredictor(_net()), "predict"), lambda: {"sample_input": _x()}),
    "OOMPredictor.savings": Call(_method(lambda: OOMPredictor(_net()), "savings"), lambda: {"sample_input": _x()}),
    "estimate_savings": Call(
        estimate_savings, lambda: {"model": _net(), "sample_input": _x(), "config": Config()}, config="None"
    ),
    "AutoTuner": Call(
        AutoTuner,
        lambda: {
            "model": _net(),
            "sample_input": (_x(),),
            "config": Config(),
            "optimizer": torch.optim.SGD,
            "optimizer_arguments": {"lr": 0.1},
            "effective_batch": 8,
            "max_batch": 8,
            "max_trials": 1,
            "steps": 1,
            "timeout_seconds": 10.0,
        },
        config="None",
        optimizer="None",
        optimizer_arguments="None dict",
        effective_batch="None int",
        max_batch="int",
        max_trials="int",
        steps="int",
        timeout_seconds="int float",
        sample_input="list",  # a list of the forward's arguments
    ),
    "optim.AdamW": Call(
        optim.AdamW,
        lambda: {
            "params": _net().parameters(),
            "lr": 1e-3,
            "betas": (0.9, 0.99),
            "eps": 1e-8,
            "weight_decay": 0.0,
            "state_bits": 32,
            "bf16": "split",
            "state": "memory",
        },
        lr=_NUMBERS,
        eps=_NUMBERS,
        weight_decay=_NUMBERS,
        betas="dict",  # torch's AdamW raises a KeyError too
        bf16="None",
    ),
    "optim.AdamW8bit": Call(
        optim.AdamW8bit,
        lambda: {"params": _net().parameters(), "lr": 1e-3, "bf16": "split"},
        lr=_NUMBERS,
        bf16="None",
    ),
    "techniques.cross_entropy": Call(
        techniques.cross_entropy,
        lambda: {
            "logits": torch.randn(4, 9),
            "labels": _LABELS,
            "weight": None,
            "ignore_index": -100,
            "reduction": "mean",
            "label_smoothing": 0.0,
            "num_items_in_batch": None,
        },
        weight="None",
        ignore_index=_NUMBERS,
        num_items_in_batch="None " + _NUMBERS,
    ),
    "techniques.linear_cross_entropy": Call(
        techniques.linear_cross_entropy,
        lambda: {
            "hidden": torch.randn(4, 6),
            "weight": torch.randn(9, 6),
            "labels": _LABELS,
            "bias": None,
            "ignore_index": -100,
            "label_smoothing": 0.0,
            "z_loss": 0.0,
            "softcap": None,
            "num_items_in_batch": 4,
        },
        bias="None",
        ignore_index=_NUMBERS,
        z_loss=_NUMBERS,
        softcap="None " + _NUMBERS,
        num_items_in_batch="None " + _NUMBERS,
    ),
    "policy.plan_by_policy": Call(
        policy.plan_by_policy,
        lambda: {
            "graph_json": _documents()[0],
            "hardware_json": _documents()[1],
            "config_json": Config().to_json(),
            "policy": None,
        },
        policy="None",
    ),
    "policy.TrainedPolicy": Call(policy.TrainedPolicy, lambda: {"text": "{}"}),
    "policy.load_policy": Call(policy.load_policy, lambda: {"path": "nowhere"}),
    "policy.seal_policy": Call(policy.seal_policy, lambda: {"policy_json": "{}"}),
    "policy.StrategyDecision.from_json": Call(policy.StrategyDecision.from_json, lambda: {"text": "{}"}),
    "ExecutionPlan": Call(
        ExecutionPlan, lambda: {"text": _documents()[2], "hardware": _documents()[1]}, hardware="None str"
    ),
    "ExecutionPlan.explain": Call(
        _method(lambda: ExecutionPlan(_documents()[2]), "explain"), lambda: {"layer": 0}, layer="None str int"
    ),
    "ModelGraph": Call(ModelGraph, lambda: {"text": _documents()[0]}),
    "ModelGraph.save": Call(
        _method(lambda: ModelGraph(_documents()[0]), "save"), lambda: {"path": "g.json"}, path="str bytes"
    ),
    "MemoryProfiler": Call(MemoryProfiler, lambda: {"config": Config()}, config="None"),
    "MemoryProfiler.trace": Call(_method(MemoryProfiler, "trace"), lambda: {"model": _net(), "sample_args": (_x(),)}),
    "DecisionEngine": Call(DecisionEngine, lambda: {"config": Config()}, config="None"),
    "DecisionEngine.plan": Call(
        _method(_engine, "plan"), lambda: {"graph_json": _documents()[0], "hardware_json": _documents()[1]}
    ),
    "DecisionEngine.uniform": Call(
        _method(_engine, "uniform"),
        lambda: {"graph_json": _documents()[0], "hardware_json": _documents()[1], "technique": "keep"},
        graph_json="None",
        technique="None",
    ),
    "Executor.report": Call(_of_an_executor("report"), lambda: {"path": "r.html"}, path="str bytes"),
    "Executor.show_progress": Call(_of_an_executor("show_progress"), lambda: {"stream": None}, stream="None"),
    "Executor.run_step": Call(_of_an_executor("run_step"), lambda: {"step": lambda: None}, step="class"),
    "Executor.apply": Call(_of_an_executor("apply"), lambda: {"plan": None}, plan="None"),
}

# Classes of values and errors. test_config.py and test_errors.py test their fields, or the caller chooses them.
_VALUES = {
    "Config",
    "AsyncOffloadConfig",
    "MemScaleError",
    "ConfigError",
    "ProfileError",
    "BudgetInfeasibleError",
    "OffloadError",
    "IntegrationError",
    "policy.PolicyFallbackNeeded",
    "policy.StrategyContext",
    "policy.StrategyDecision",
}
_WITHOUT_ARGUMENTS = {"disable_telemetry", "disconnect"}


def _public_names() -> set[str]:
    packages = {"optim": optim, "policy": policy, "techniques": techniques}
    names = {name for name in memscale.__all__ if name not in packages and not name.startswith("__")}
    for prefix, package in packages.items():
        names |= {f"{prefix}.{name}" for name in package.__all__}
    return names


def test_every_public_name_is_tried() -> None:
    assert _public_names() <= CALLS.keys() | _VALUES | _WITHOUT_ARGUMENTS


@pytest.fixture(autouse=True)
def _apart(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    memscale.disable_telemetry()


@pytest.mark.parametrize("name", CALLS)
def test_wrong_types_are_told_and_change_nothing(name: str) -> None:
    call = CALLS[name]
    accepted = []
    for argument in call.arguments():
        for kind, value in _WRONG.items():
            arguments = call.arguments()
            known = {key: dict(thing.__dict__) for key, thing in arguments.items() if isinstance(thing, nn.Module)}
            if kind in call.taken.get(argument, ()):
                continue
            try:
                call.function(**arguments | {argument: value})
            except _TOLD as error:
                assert str(error).strip(), f"{argument}={kind}: an exception without a text"
                for key, before in known.items():
                    assert arguments[key].__dict__.keys() == before.keys(), f"{argument}={kind}: {key} was changed"
            except Exception as error:
                pytest.fail(f"{name}({argument}={kind}): {type(error).__name__}: {error}")
            else:
                accepted.append(f"{argument}={kind}")
    assert not accepted, f"{name} took {', '.join(accepted)}"


_SAMPLED: dict[str, Callable[[Any], Any]] = {
    "wrap": lambda sample: memscale.wrap(_net(), Config(), sample),
    "optimize": lambda sample: _optimize(model=_net(), sample_input=sample),
    "plan": lambda sample: memscale.plan(_net(), sample),
    "trace": lambda sample: memscale.trace(_net(), sample),
    "predict": lambda sample: OOMPredictor(_net()).predict(sample),
    "estimate_savings": lambda sample: estimate_savings(_net(), sample),
    "AutoTuner": lambda sample: AutoTuner(_net(), sample),
}


@pytest.mark.parametrize("name", _SAMPLED)
@pytest.mark.parametrize("kind", ["int", "float", "str", "bytes", "object", "class", "dtype"])
def test_a_sample_that_is_no_tensor_tuple_or_dict_is_a_type_error(name: str, kind: str) -> None:
    with pytest.raises(TypeError, match=f"sample_input must be a tensor.*not {type(_WRONG[kind]).__qualname__}"):
        _SAMPLED[name](_WRONG[kind])


@pytest.mark.parametrize(
    ("sample", "hint"),
    [
        ("some text", "a model reads tensors"),
        (None, "what the training loop passes"),
        (3, r"as a tuple, \(argument,\)"),
    ],
)
def test_a_sample_that_is_refused_comes_with_what_to_give(sample: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        memscale.plan(_net(), sample)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: memscale.wrap(_net(), memory_budget_gb=1), r"give config=memscale\.Config\(memory_budget_gb=\.\.\.\)"),
        (lambda: memscale.wrap(_net(), memory_budget=1), r"did you mean config=memscale\.Config\(memory_budget_gb="),
        (lambda: memscale.wrap(_net(), sample_inputs=(1,)), r"did you mean sample_input\?"),
        (lambda: memscale.plan(_net(), torch.zeros(1), conf=None), r"did you mean config\?"),
        (
            lambda: memscale.optimize(_net(), budget_gb=1),
            r"optimize\(\) has no argument budget_gb; did you mean",
        ),
    ],
)
def test_an_argument_that_does_not_exist_comes_with_the_one_that_was_meant(call: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        call()
