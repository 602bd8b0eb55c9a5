"""`memscale plan --chain` from outside: the schema and the parser agree, and every schedule that
is printed replays to the numbers printed beside it."""

import json
import subprocess

import jsonschema
import pytest
from chain_support import ANSWER, ROOT, SCHEMA, fastest, program, random_chain, solve
from time_limits import HANG_SECONDS

CORPUS = ROOT / "tests" / "fuzz" / "corpus" / "chain"
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

# Refused for what a schema can't say: one member against another, a member given twice; 20.0 and
# 2e1 are integers to a schema.
BEYOND_SCHEMA = {
    "saved_below_output.json",
    "link_unknown.json",
    "link_twice.json",
    "duplicate_inside.json",
    "whole_float.json",
    "exponent.json",
}


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_schema_and_parser_agree(path):
    command = [program(), "plan", "--chain", str(path), "--budget", "1000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    try:
        document = json.loads(path.read_bytes())
        valid = VALIDATOR.is_valid(document)
    except (ValueError, RecursionError):
        valid = False
    if path.name in BEYOND_SCHEMA:
        assert valid and done.returncode == 2
    else:
        assert done.returncode == (0 if valid else 2), done.stderr
    if done.returncode == 0:
        ANSWER.validate(json.loads(done.stdout))
    else:
        assert done.stdout == "" and done.stderr.count("\n") == 1 and path.name in done.stderr


@pytest.mark.parametrize("layers", [1, 5, 23, 64])
def test_schedules_replay_and_smallest_budgets_are_smallest(layers):
    chain = random_chain(layers, layers)
    least = solve(chain, 0)["smallest_budget_bytes"]
    assert solve(chain, least - 1) == {"feasible": False, "smallest_budget_bytes": least}
    times = [solve(chain, least * step // 4)["makespan_ns"] for step in range(4, 20)]
    assert times == sorted(times, reverse=True)
    assert solve(chain, 100 * least)["makespan_ns"] == sum(fastest(chain))


def test_transfers_of_a_layer_alone_hide_under_nothing():
    chain = json.loads((CORPUS / "links.json").read_text())
    chain["layers"] = chain["layers"][:1]
    keep, offload = chain["layers"][0]["options"]
    assert "link" not in keep and offload["link_bytes"] == 40
    few, many = solve(chain, 95), solve(chain, 1000)
    assert many["makespan_ns"] == keep["fwd_ns"] + keep["bwd_ns"]
    assert few["makespan_ns"] == offload["fwd_ns"] + offload["bwd_ns"] + 2 * 40
    assert offload["fwd_ns"] + offload["bwd_ns"] <= few["lower_bound_ns"] < few["makespan_ns"]


def test_transfers_hide_under_compute_where_there_is_room():
    option = {"kind": "offload", "saved_bytes": 1, "fwd_ns": 100, "bwd_ns": 200, "fwd_tmp_bytes": 50}
    option |= {"bwd_tmp_bytes": 51, "link": "disk", "link_bytes": 50}
    layer = {"name": "h", "output_bytes": 1, "fwd_ns": 100, "fwd_tmp_bytes": 0, "options": [option]}
    chain = {"version": 1, "input_bytes": 1, "layers": [layer] * 12}
    chain["links"] = [{"name": "disk", "bytes_per_s": 10**9}]
    tight, room = solve(chain, 1 + 12 + 1 + 51), solve(chain, 10**4)
    assert tight["makespan_ns"] == 12 * (300 + 2 * 50) and "write_window_bytes" not in tight
    assert 12 * 300 < room["makespan_ns"] <= 12 * 300 + 2 * 50
    assert room["write_window_bytes"] > 0 < room["read_window_bytes"]


def test_a_million_layers_are_refused_in_one_line(tmp_path):
    path = tmp_path / "long.json"
    path.write_text('{"version": 1, "input_bytes": 0, "layers": [\n' + "{},\n" * 1_000_000 + "{}]}")
    command = [program(), "plan", "--chain", str(path), "--budget", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"memscale: plan: --chain {path}: chain: line 65538: more than 65536 layers\n"


@pytest.mark.parametrize("layers", [2, 5, 12, 20])
@pytest.mark.parametrize("snapshots", [1, 2, 3, 5])
def test_uniform_chains_take_the_forwards_of_revolve(layers, snapshots):
    """What one step saves is so large that two are never saved at once: then the least number of
    forwards is Revolve's with as many snapshots as fit beside it, its input and its gradients."""
    schedules = pytest.importorskip("checkpoint_schedules")
    if snapshots >= layers:
        pytest.skip("more snapshots than steps")
    large = 1000
    option = {
        "kind": "keep",
        "saved_bytes": large,
        "fwd_ns": 1,
        "bwd_ns": 0,
        "fwd_tmp_bytes": 0,
        "bwd_tmp_bytes": 1,
    }
    layer = {"name": "", "output_bytes": 1, "fwd_ns": 1, "fwd_tmp_bytes": 0, "options": [option]}
    chain = {"version": 1, "input_bytes": 1, "layers": [layer] * layers}
    forwards = 0
    for action in schedules.Revolve(layers, snapshots):
        if isinstance(action, schedules.Forward):
            forwards += min(action.n1, layers) - action.n0
        elif isinstance(action, schedules.EndReverse):
            break
    assert solve(chain, large + 3 + snapshots)["makespan_ns"] == forwards
