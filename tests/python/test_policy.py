"""Stage 1: the plan records the source of its decision, the caller's configuration never changes, and no artifact
stops a run."""

from __future__ import annotations

import copy
import functools
import json
import logging
import pathlib

import jsonschema
import pytest
import torch
from torch import nn

import memscale
from memscale import Config, policy
from memscale.errors import MemScaleError, PolicyFallbackNeeded

ROOT = pathlib.Path(__file__).resolve().parents[2]
BODY = {
    "name": "test",
    "features": [{"name": "pressure_permille", "least": 0, "usual": 400, "most": 10**6, "is_checked": False}],
    "strategies": [
        {
            "mode": "conservative",
            "enable_checkpointing": True,
            "enable_offloading": False,
            "search_permille": 1000,
            "second_permille": 0,
            "base_cost": 0,
        },
        {
            "mode": "aggressive",
            "enable_checkpointing": True,
            "enable_offloading": True,
            "search_permille": 250,
            "second_permille": 0,
            "base_cost": 5,
        },
    ],
    "trees": [{"strategy": 0, "nodes": [[0, 500, 1, 2], [9], [0]]}],
}


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger="memscale")
    monkeypatch.delenv("MEMSCALE_POLICY", raising=False)


@pytest.fixture
def artifact(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "policy.json"
    path.write_text(policy.seal_policy(json.dumps(BODY)))
    return path


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(16)])


BATCH = torch.ones(65536, 64)


@functools.cache
def _budget() -> float:
    """A budget in GB halfway between the smallest that fits and the unmodified step's need."""
    with pytest.raises(memscale.BudgetInfeasibleError) as refused:
        memscale.wrap(_model(), Config(memory_budget_gb=0.001), sample_input=BATCH)
    smallest = refused.value.smallest_budget_bytes
    model = memscale.wrap(_model(), Config(memory_budget_gb=100), sample_input=BATCH)
    need = model._memscale_executor.plan.unoptimized_peak_bytes
    memscale.detach(model)
    return (smallest + need) / 2e9


def _decided(config: Config) -> dict:
    model = memscale.wrap(_model(), config, sample_input=BATCH)
    executor = model._memscale_executor
    decision, source = executor.decision, executor.plan.decision_source
    memscale.detach(model)
    assert decision["decision_source"] == source
    return decision


@pytest.mark.parametrize(
    ("variable", "auto", "source"),
    [
        (None, False, "user_config"),
        ("artifact", False, "user_config"),
        ("artifact", True, "ml"),
        (None, True, "ml"),
        ("missing", True, "rule_fallback"),
        ("rule", True, "rule"),
    ],
)
def test_the_source_is_recorded_on_the_executor_and_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    artifact: pathlib.Path,
    variable: str | None,
    auto: bool,
    source: str,
) -> None:
    if variable is not None:
        monkeypatch.setenv("MEMSCALE_POLICY", str(artifact) if variable == "artifact" else variable)
    config = Config(auto_policy=auto, memory_budget_gb=_budget())
    before = copy.deepcopy(config)
    decision = _decided(config)
    if variable is None and "was trained for" in caplog.text:  # this machine is slower or faster than all of its corpus
        source = {"ml": "rule_fallback"}.get(source, source)
    assert decision["decision_source"] == source
    assert config == before
    assert (f"policy ({source})" in caplog.text) == auto
    if variable == "artifact" and auto:
        assert (decision["mode"], decision["enable_offloading"]) == ("conservative", False)
        assert decision["context"]["pressure_permille"] > 500


def test_without_gpu_and_budget_the_callers_configuration_stands() -> None:
    decision = _decided(Config(auto_policy=True, mode="conservative"))
    assert (decision["decision_source"], decision["mode"]) == ("user_config", "conservative")


def test_without_auto_policy_plans_are_the_same_byte_for_byte(
    monkeypatch: pytest.MonkeyPatch, artifact: pathlib.Path
) -> None:
    from memscale.session.session import Session
    from memscale.tracing.profiler import MemoryProfiler

    graph = MemoryProfiler().trace(_model(), (BATCH,))
    config = Config(memory_budget_gb=_budget())
    session = Session(_model(), config, applies=False)
    plain = memscale._core.plan_make(graph, session.hardware_json, config.to_json())
    for value in (str(artifact), "rule", "/nowhere"):
        monkeypatch.setenv("MEMSCALE_POLICY", value)
        assert session._make_plan(graph) == plain


@pytest.mark.parametrize("what", ["missing", "cut", "touched", "binary", "folder"])
def test_an_artifact_that_is_no_good_costs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, artifact: pathlib.Path, what: str
) -> None:
    path = artifact.parent / what
    if what == "cut":
        path.write_text(artifact.read_text()[:100])
    elif what == "touched":
        path.write_text(artifact.read_text().replace("500", "501"))
    elif what == "binary":
        path.write_bytes(bytes(range(256)))
    elif what == "folder":
        path.mkdir()
    with pytest.raises(PolicyFallbackNeeded):
        policy.load_policy(path)
    monkeypatch.setenv("MEMSCALE_POLICY", str(path))
    assert _decided(Config(auto_policy=True, memory_budget_gb=_budget()))["decision_source"] == "rule_fallback"
    assert "the rules decide" in caplog.text


def test_what_is_sealed_fits_its_schema_and_what_does_not_is_refused(artifact: pathlib.Path) -> None:
    schema = json.loads((ROOT / "docs/formats/policy.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(artifact.read_text()))
    parts = schema["properties"]["policy"]["properties"]
    features = parts["features"]["items"]["properties"]["name"]["enum"]
    assert (
        features
        == memscale._core.policy_tables()[0]
        == [field for field in policy.StrategyContext.__dataclass_fields__]
    )
    with pytest.raises(MemScaleError, match="trees"):
        policy.seal_policy(json.dumps(BODY | {"trees": []}))


def test_a_decision_gives_an_effective_config_and_leaves_the_callers_alone(artifact: pathlib.Path) -> None:
    from memscale.session.session import Session
    from memscale.tracing.profiler import MemoryProfiler

    config = Config(memory_budget_gb=_budget(), enable_checkpointing=False)
    session = Session(_model(), config, applies=False)
    graph = MemoryProfiler().trace(_model(), (BATCH,))
    trained = policy.load_policy(artifact)
    _, decision, planned_for = policy.plan_by_policy(graph, session.hardware_json, config.to_json(), trained)
    effective = decision.effective_config(config)
    assert json.loads(planned_for) == json.loads(effective.to_json())
    assert not effective.enable_checkpointing
    assert config.mode == "balanced"
