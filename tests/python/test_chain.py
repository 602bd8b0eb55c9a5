"""`memscale plan --chain` from outside: the schema and the parser agree, and every schedule that
is printed replays to the numbers printed beside it."""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

import jsonschema
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus" / "chain"
SCHEMA = json.loads((ROOT / "docs" / "formats" / "chain.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
ANSWER = jsonschema.Draft202012Validator({**SCHEMA["$defs"]["answer"], "$defs": SCHEMA["$defs"]})

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


@pytest.fixture(scope="module")
def program():
    """The `memscale` program: MEMSCALE_PROGRAM, or the one beside this interpreter."""
    given = os.environ.get("MEMSCALE_PROGRAM")
    found = given or shutil.which("memscale", path=str(pathlib.Path(sys.executable).parent))
    assert found, "the memscale program is not installed; run make build"
    return found


@pytest.fixture
def solve(program, tmp_path):
    """Solves a chain; checks the answer's form and replays it."""

    def solve(chain, budget):
        path = tmp_path / "chain.json"
        path.write_text(json.dumps(chain))
        command = [program, "plan", "--chain", str(path), "--budget", str(budget), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        ANSWER.validate(answer)
        if answer["feasible"]:
            assert replay(chain, answer["schedule"]) == (answer["makespan_ns"], answer["peak_bytes"])
            assert answer["peak_bytes"] <= budget
        return answer

    return solve


def transfer(chain, option):
    """Nanoseconds for what an option moves over a link, one way."""
    rates = {link["name"]: link["bytes_per_s"] for link in chain.get("links", [])}
    return -(-option["link_bytes"] * 10**9 // rates[option["link"]]) if "link" in option else 0


def replay(chain, schedule):
    """Nanoseconds and peak bytes of a schedule, by what is in memory after each operation."""
    layers = chain["layers"]
    size = [chain["input_bytes"], *(layer["output_bytes"] for layer in layers)]
    alone, saved, gradients = {0}, {}, {len(layers)}
    ns = peak = 0
    for operation in schedule:
        i = operation["layer"]
        layer = layers[i]
        live = sum(size[n] for n in alone) + sum(size[n] for n in gradients)
        live += sum(layers[n]["options"][k]["saved_bytes"] for n, k in saved.items())
        assert i in alone or i - 1 in saved, f"{operation}: its input is not there"
        if operation["op"] == "bwd":
            assert saved.pop(i) == operation["option"] and i + 1 in gradients
            option = layer["options"][operation["option"]]
            more, took = option["bwd_tmp_bytes"], option["bwd_ns"] + transfer(chain, option)
            gradients = {i}
            alone.discard(i)
        elif operation["op"] == "fwd_save":
            assert i not in saved
            option = layer["options"][operation["option"]]
            more = option["saved_bytes"] + option["fwd_tmp_bytes"]
            took = option["fwd_ns"] + transfer(chain, option)
            saved[i] = operation["option"]
        else:
            more, took = size[i + 1] + layer["fwd_tmp_bytes"], layer["fwd_ns"]
            if operation["op"] == "fwd_drop":
                alone.remove(i)
            alone.add(i + 1)
        peak = max(peak, live + more)
        ns += took
    assert gradients == {0} and not saved
    return ns, peak


def random_chain(seed, layers, most=10**9):
    """A chain of layers that all differ."""
    generator = random.Random(seed)

    def amount(least=0, top=most):
        return generator.randint(least, top)

    size = [amount() for _ in range(layers + 1)]
    return {
        "version": 1,
        "input_bytes": size[0],
        "layers": [
            {
                "name": f"h.{i}",
                "output_bytes": size[i + 1],
                "fwd_ns": (forward := amount()),
                "fwd_tmp_bytes": amount(),
                "options": [
                    {
                        "kind": f"set {k}",
                        "saved_bytes": size[i + 1] + amount(0, 3 * most),
                        "fwd_ns": forward,
                        "bwd_ns": amount(),
                        "fwd_tmp_bytes": amount(),
                        "bwd_tmp_bytes": size[i] + amount(),
                    }
                    for k in range(generator.randint(1, 3))
                ],
            }
            for i in range(layers)
        ],
    }


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_schema_and_parser_agree(path, program):
    command = [program, "plan", "--chain", str(path), "--budget", "1000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
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
def test_schedules_replay_and_smallest_budgets_are_smallest(layers, solve):
    chain = random_chain(layers, layers)
    least = solve(chain, 0)["smallest_budget_bytes"]
    assert solve(chain, least - 1) == {"feasible": False, "smallest_budget_bytes": least}
    times = [solve(chain, least * step // 4)["makespan_ns"] for step in range(4, 20)]
    assert times == sorted(times, reverse=True)
    fastest = [min(o["fwd_ns"] + o["bwd_ns"] for o in layer["options"]) for layer in chain["layers"]]
    assert solve(chain, 100 * least)["makespan_ns"] == sum(fastest)


def test_transfers_over_a_link_are_charged_in_full(solve):
    chain = json.loads((CORPUS / "links.json").read_text())
    chain["layers"] = chain["layers"][:1]
    keep, offload = chain["layers"][0]["options"]
    assert "link" not in keep and offload["link_bytes"] == 40
    few, many = solve(chain, 95), solve(chain, 1000)
    assert many["makespan_ns"] == keep["fwd_ns"] + keep["bwd_ns"]
    assert few["makespan_ns"] == offload["fwd_ns"] + offload["bwd_ns"] + 2 * 40


def test_a_million_layers_are_refused_in_one_line(program, tmp_path):
    path = tmp_path / "long.json"
    path.write_text('{"version": 1, "input_bytes": 0, "layers": [\n' + "{},\n" * 1_000_000 + "{}]}")
    command = [program, "plan", "--chain", str(path), "--budget", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"memscale: plan: --chain {path}: chain: line 65602: more than 65536 layers\n"


@pytest.mark.parametrize("layers", [2, 5, 12, 20])
@pytest.mark.parametrize("snapshots", [1, 2, 3, 5])
def test_uniform_chains_take_the_forwards_of_revolve(layers, snapshots, solve):
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
