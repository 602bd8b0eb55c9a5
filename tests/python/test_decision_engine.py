"""Planning through the Python API: engine and plan objects, determinism, monotonicity on traced models,
and the schema of plans."""

import json
import pathlib
import subprocess
import sys

import pytest
from schema_support import schema, validator
from time_limits import HANG_SECONDS

from memscale import _core
from memscale.config import Config
from memscale.errors import BudgetInfeasibleError, MemScaleError
from memscale.planning.decision_engine import DecisionEngine
from memscale.planning.execution_plan import ExecutionPlan

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus" / "plan"
GRAPH = (ROOT / "tests" / "cli" / "data" / "graph_small.json").read_text()
HARDWARE = (ROOT / "tests" / "cli" / "data" / "hardware_disk.json").read_text()
SCHEMA = schema("plan")
VALIDATOR = validator("plan")

TECHNIQUES = ["keep", "recompute", "recompute_offload_input", "offload_host", "offload_disk", "selective_1"]

# Documents that the parser refuses by rules that a schema can't express: to a schema, 1e9 is an integer, and an
# index into another member may have any value.
BEYOND_SCHEMA = {
    "float.json", "packing_order.json", "packing_slot.json", "selection_bound.json", "selections_slot.json"
}  # fmt: skip


def make(budget_gb=None, graph=GRAPH, **fields):
    return DecisionEngine(Config(memory_budget_gb=budget_gb, **fields)).plan(graph, HARDWARE)


def smallest(graph=GRAPH, **fields):
    with pytest.raises(BudgetInfeasibleError) as refusal:
        make(1e-3, graph, **fields)
    return refusal.value.smallest_budget_bytes


# ---- the engine ------------------------------------------------------------------------------


def test_a_plan_says_what_it_is():
    plan = make(0.75)
    assert plan.predicted_peak_bytes <= 750_000_000 < plan.unoptimized_peak_bytes
    assert plan.predicted_step_seconds > plan.unoptimized_step_seconds > 0
    assert plan.smallest_budget_bytes <= 750_000_000
    assert plan.decision_source == "user_config"
    assert not plan.skipped and not plan.over_target
    assert len(plan) == len(plan.layers) == 6
    assert sum(plan.techniques.values()) == 6 and plan.techniques.get("keep", 0) < 6
    assert [entry["name"] for entry in plan.layers] == [f"blocks.{i}" for i in range(6)]
    assert len(plan.entries) == 8 and plan.entries[0]["name"] == ""


def test_the_config_is_read_when_the_engine_is_made():
    config = Config(memory_budget_gb=0.75)
    engine = DecisionEngine(config)
    config.memory_budget_gb = 0.9
    assert engine.plan(GRAPH, HARDWARE) == make(0.75)


def test_a_comfortable_run_is_skipped_unless_forced():
    assert make().skipped and make().techniques == {"keep": 6}
    forced = make(force_optimize=True)
    assert not forced.skipped and "keep" not in forced.techniques
    assert forced.predicted_peak_bytes < make().predicted_peak_bytes


def test_modes_and_flags_limit_what_is_used():
    conservative = set(make(force_optimize=True, mode="conservative").techniques)
    assert "recompute" in conservative <= {"recompute", "recompute_joined"}
    only_disk = make(force_optimize=True, enable_checkpointing=False)
    assert set(only_disk.techniques) == {"offload_disk"}
    nothing = make(force_optimize=True, enable_checkpointing=False, enable_offloading=False)
    assert nothing.techniques == {"keep": 6}


def test_a_refusal_names_the_smallest_budget_and_what_it_takes():
    bytes_needed = smallest()
    with pytest.raises(BudgetInfeasibleError, match="no plan fits .* the smallest budget .* with"):
        make(bytes_needed / 1e9 - 1e-6)
    assert make((bytes_needed + 1) / 1e9).predicted_peak_bytes <= bytes_needed + 1


def test_malformed_documents_name_the_place():
    with pytest.raises(MemScaleError, match=r"graph: \$"):
        DecisionEngine().plan("{}", HARDWARE)
    with pytest.raises(MemScaleError, match=r"hardware: \$"):
        DecisionEngine().plan(GRAPH, "{}")


@pytest.mark.parametrize("technique", [None, *TECHNIQUES])
def test_uniform_plans(technique):
    engine = DecisionEngine(Config(memory_budget_gb=1.2))
    plan = engine.uniform(GRAPH, HARDWARE, technique)
    expected = {"offload_host": "keep", "selective_1": "keep"}.get(technique, technique)  # host memory; no makers
    assert technique is None or set(plan.techniques) == {expected}
    blind = engine.uniform(None, HARDWARE, technique)
    assert len(blind) == 0 and json.loads(blind.to_json())["fallback"] in TECHNIQUES
    assert "not yet profiled" in str(blind)


def test_no_such_technique():
    with pytest.raises(ValueError, match="teleport"):
        DecisionEngine().uniform(GRAPH, HARDWARE, "teleport")


# ---- determinism and monotonicity ------------------------------------------------------------


def test_two_processes_give_the_same_bytes():
    program = (
        "import sys\n"
        "from memscale.config import Config\n"
        "from memscale.planning.decision_engine import DecisionEngine\n"
        "graph, hardware = (open(path).read() for path in sys.argv[1:3])\n"
        "plan = DecisionEngine(Config(memory_budget_gb=0.75)).plan(graph, hardware)\n"
        "sys.stdout.write(plan.to_json())\n"
    )
    data = ROOT / "tests" / "cli" / "data"
    command = [sys.executable, "-c", program, data / "graph_small.json", data / "hardware_disk.json"]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_SECONDS) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout == make(0.75).to_json()


def seen(graph, held, live):
    """The graph with facts about the loop, as if it had been observed."""
    document = json.loads(graph)
    document["loop"].update(observed=True, outputs_held=held, gradients_live_in_forward=live)
    return json.dumps(document)


@pytest.mark.parametrize("loop", [None, (False, False), (True, True)], ids=["unseen", "lean", "holding"])
def test_a_larger_budget_is_never_slower_nor_smaller(loop):
    graph = GRAPH if loop is None else seen(GRAPH, *loop)
    least, most = smallest(graph), 1.2 * make(graph=graph).unoptimized_peak_bytes
    before = None
    for k in range(40):
        budget = int(least + (most - least) * k / 39) + 1
        plan = make(budget / 1e9, graph)
        taken = plan.predicted_peak_bytes + plan.reserve_bytes
        assert taken <= budget
        if before is not None:
            assert plan.predicted_step_seconds <= before[0]
            assert taken >= before[1]
        before = plan.predicted_step_seconds, taken


# ---- the plan object -------------------------------------------------------------------------


def test_explanations():
    plan = make(0.75)
    assert plan.explain().startswith("plan for Net")
    assert plan.explain(0) == plan.explain("blocks.0") == plan.explain(-6)
    assert plan.explain(5).startswith("layer blocks.5")
    for part in ("rule", "bytes", "time", "runner-up"):
        assert part in plan.explain("blocks.3")
    for part in ("made of", "optimizer state", "no plan that fits takes less than", "the next larger budget"):
        assert part in plan.explain()


def test_what_makes_the_peak_sums_to_it():
    for budget_gb in (0.73, 0.75, 0.9):
        plan = make(budget_gb)
        parts = plan.explanation["peak"]["parts"]
        assert sum(part["bytes"] for part in parts) == plan.predicted_peak_bytes
        assert 0 < plan.explanation["lower_bound_ns"] <= plan.predicted_step_seconds * 1e9


def test_explaining_what_is_not_there_names_what_is():
    plan = make(0.75)
    with pytest.raises(KeyError, match=r"blocks\.9.*blocks\.0, blocks\.1"):
        plan.explain("blocks.9")
    with pytest.raises(IndexError, match="6 layers"):
        plan.explain(6)
    with pytest.raises(IndexError):
        plan.explain(-7)
    for wrong in (1.5, True, b"blocks.0"):
        with pytest.raises(TypeError):
            plan.explain(wrong)


def test_the_plan_is_the_text_that_c_wrote():
    text = _core.plan_make(GRAPH, HARDWARE, Config(memory_budget_gb=0.75).to_json())
    plan = ExecutionPlan(text, HARDWARE)
    assert plan.to_json() is text
    assert str(plan) == _core.plan_table(text, HARDWARE)
    assert "machine" not in str(ExecutionPlan(text))
    assert plan == ExecutionPlan(text) and hash(plan) == hash(ExecutionPlan(text))
    assert plan != make(0.9) and plan != text
    assert "Net" in repr(plan)


def test_what_is_no_plan_is_refused():
    for text in ("", "{}", '{"version": 1}'):
        with pytest.raises(MemScaleError, match="plan"):
            ExecutionPlan(text)


def test_the_entries_are_copies():
    plan = make(0.75)
    plan.entries[0]["technique"] = "changed"
    assert plan.entries[0]["technique"] in TECHNIQUES


# ---- simulation and observation ----------------------------------------------------------------


def test_a_plan_can_be_replayed_with_its_timeline():
    plan = make(0.75)
    replay = _core.plan_simulate(GRAPH, HARDWARE, plan.to_json())
    assert replay["peak_bytes"] <= plan.predicted_peak_bytes
    timeline = replay["timeline"]
    assert [point["node"] for point in timeline] == [*range(8), *reversed(range(8))]
    assert all(a["at_ns"] <= b["at_ns"] for a, b in zip(timeline, timeline[1:], strict=False))
    assert max(point["device_bytes"] for point in timeline) <= replay["peak_bytes"]


def test_a_plan_for_another_graph_is_not_replayed():
    blind = _core.plan_uniform(None, HARDWARE, Config().to_json(), None)
    with pytest.raises(MemScaleError, match="0 entries"):
        _core.plan_simulate(GRAPH, HARDWARE, blind)


def test_a_finished_step_teaches():
    config, plan = Config(memory_budget_gb=0.75).to_json(), make(0.75)
    observation = {"step": 2, "peak_bytes": plan.predicted_peak_bytes, "step_ns": None}
    drift, line, graph, hardware, overrun = _core.plan_observe(GRAPH, HARDWARE, config, plan.to_json(), observation)
    assert drift == "none" and "as planned" in line and not overrun
    assert json.loads(graph) == json.loads(GRAPH) and hardware == HARDWARE
    observation["optimizer_state_bytes"] = 0
    drift, line, graph, hardware, overrun = _core.plan_observe(GRAPH, HARDWARE, config, plan.to_json(), observation)
    assert drift == "optimizer" and json.loads(graph)["loop"]["optimizer_state_bytes"] == 0 and not overrun
    for peak_bytes, overrun in ((750_000_001, 1), (757_500_000, 1), (757_500_001, 2)):
        observation["peak_bytes"] = peak_bytes
        seen = _core.plan_observe(GRAPH, HARDWARE, config, plan.to_json(), observation)
        assert seen[4] == overrun and " over the budget; " in seen[1]
    assert DecisionEngine(Config(memory_budget_gb=0.75)).plan(graph, hardware) != plan


def test_what_one_step_taught_reaches_no_other_document():
    """Documents stay parsed between steps; a correction belongs to the text that is returned, not to the one given."""
    config, plan = Config(memory_budget_gb=0.75).to_json(), make(0.75).to_json()
    plain = {"step": 2, "peak_bytes": None, "step_ns": None}
    same = _core.plan_observe(GRAPH, HARDWARE, config, plan, plain)[2]
    assert same is GRAPH
    corrected = _core.plan_observe(GRAPH, HARDWARE, config, plan, {**plain, "optimizer_state_bytes": 0})[2]
    assert _core.plan_observe(GRAPH, HARDWARE, config, plan, plain)[2] is GRAPH
    for text in [GRAPH, corrected, *(json.dumps({**json.loads(GRAPH), "model": str(i)}) for i in range(6)), GRAPH]:
        assert json.loads(_core.plan_observe(text, HARDWARE, config, plan, plain)[2]) == json.loads(text)


def test_observations_are_checked():
    config, plan = Config().to_json(), make().to_json()
    with pytest.raises(TypeError):
        _core.plan_observe(GRAPH, HARDWARE, config, plan, [])
    with pytest.raises((TypeError, OverflowError)):
        _core.plan_observe(GRAPH, HARDWARE, config, plan, {"step": 1, "peak_bytes": -1})


# ---- the schema ------------------------------------------------------------------------------


def test_plans_are_valid():
    for plan in (make(), make(0.75), make(0.9), make(force_optimize=True)):
        document = json.loads(plan.to_json())
        VALIDATOR.validate(document)
        absent = {"selections", "state_buffer_bytes", "state_moved_bytes"} | (
            set() if plan.reserve_bytes else {"reserve_bytes"}
        )
        assert list(document) == [name for name in SCHEMA["properties"] if name not in absent]
    VALIDATOR.validate(json.loads(_core.plan_uniform(None, HARDWARE, Config().to_json(), None)))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.name)
def test_schema_and_parser_agree(path):
    try:
        document = json.loads(path.read_text())
    except (json.JSONDecodeError, RecursionError):
        pytest.skip("not JSON")
    try:
        ExecutionPlan(path.read_text())
        read = True
    except MemScaleError:
        read = False
    assert read == (VALIDATOR.is_valid(document) and path.name not in BEYOND_SCHEMA)
