"""The JSON Schemas in docs/formats: every document that memscale writes is valid, and a schema accepts the same
documents as the parser in C."""

import itertools
import json
import os
import pathlib
import subprocess

import pytest
from program_support import program_path
from schema_support import FORMATS, schema, validator
from time_limits import HANG_SECONDS

from memscale import _core
from memscale.config import AsyncOffloadConfig, Config
from memscale.errors import MemScaleError

ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
DATA = ROOT / "tests" / "cli" / "data"

# Documents that the parser refuses by rules that a schema can't express: an order, an index into another member, a
# length in bytes, a repeated member.
BEYOND_SCHEMAS = {
    "config/duplicate.json",
    "config/long.json",
    "hardware/isa_order.json",
    "hardware/device.json",
}


@pytest.fixture(scope="session")
def program():
    return program_path()


@pytest.fixture
def run(program, tmp_path):
    """Runs the program with an empty home directory; returns its standard output."""

    def run(*arguments, status=0):
        environment = dict(os.environ, HOME=str(tmp_path), MEMSCALE_LIBCUDA="/nonexistent")
        environment.pop("XDG_CACHE_HOME", None)
        command = [program, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
        )
        assert done.returncode == status, done.stderr
        return done.stdout

    return run


DOCUMENTS = sorted(path for path in FORMATS.glob("*.schema.json") if not path.name.startswith("technique"))


def test_the_schema_of_techniques_has_their_names():
    assert schema("technique")["enum"] == list(_core.TECHNIQUES)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_schemas_are_2020_12_closed_and_versioned(path):
    document = schema(path.name.removesuffix(".schema.json"))
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    # Telemetry's documents use their receivers' name for the version.
    name, number = ("schema_version", 2) if path.name.startswith("telemetry") else ("version", 1)
    number = 2 if path.name == "policy.schema.json" else number
    assert document["properties"][name] == {"const": number} and name in document["required"]

    def closed(part):
        if isinstance(part, dict):
            if "properties" in part:
                assert part.get("additionalProperties") is False, part
            for value in part.values():
                closed(value)
        elif isinstance(part, list):
            for value in part:
                closed(value)

    closed(document)


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(
            mode="aggressive",
            max_cpu_offload_gb=0,
            target_gpu_utilization=1e-9,
            log_file="a",
            observability_port=1,
            async_config=AsyncOffloadConfig(1e-9, prefetch_depth=1024, num_streams=64, debug=True),
            memory_budget_gb=1e-9,
            disk_offload_dir="/ä" * 1365,
            max_disk_offload_gb=1_000_000,
        ),
    ],
    ids=["defaults", "extremes"],
)
def test_configs_are_valid_and_complete(config):
    document = json.loads(config.to_json())
    validator("config").validate(document)
    schema = json.loads((FORMATS / "config.schema.json").read_text())
    assert list(document) == list(schema["properties"])


def test_defaults_in_the_schema_are_those_of_c():
    schema = json.loads((FORMATS / "config.schema.json").read_text())
    document = json.loads(_core.config_defaults())
    nested = schema["$defs"]["async_config"]["properties"]
    assert document.pop("async_config") == {name: part["default"] for name, part in nested.items()}
    for name, value in document.items():
        if name != "version":
            assert schema["properties"][name]["default"] == value


@pytest.mark.parametrize(
    "path",
    sorted(path for kind in ("config", "hardware") for path in CORPUS.glob(f"{kind}/*.json")),
    ids=lambda path: path.name,
)
def test_schema_and_parser_agree(path):
    kind = path.parent.name
    check = {"config": _core.config_validate, "hardware": _core.hardware_check}[kind]
    try:
        text = path.read_bytes().decode()
        document = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        pytest.skip("not JSON")
    try:
        normal = check(text)
    except (MemScaleError, ValueError):
        normal = None
    if normal is not None:
        validator(kind).validate(json.loads(normal))
    if f"{kind}/{path.name}" in BEYOND_SCHEMAS:
        assert normal is None
    else:
        assert validator(kind).is_valid(document) == (normal is not None)


@pytest.mark.parametrize("path", sorted(DATA.glob("hardware_*.json")), ids=lambda path: path.name)
def test_saved_hardware_is_valid_and_printed_as_it_was(path, run):
    validator("hardware").validate(json.loads(path.read_text()))
    assert _core.hardware_check(path.read_text()) == path.read_text()
    assert run("hardware", "--json", "--from", path) == path.read_text()


def test_this_machine_is_valid(run, tmp_path):
    (tmp_path / "spill").mkdir()
    text = run("hardware", "--json", "--disk-dir", tmp_path / "spill")
    validator("hardware").validate(json.loads(text))
    assert _core.hardware_check(text) == text
    validator("hardware").validate(json.loads(_core.hardware_probe(no_measure=True)))


def test_doctor_is_valid_also_when_a_check_fails(run, tmp_path):
    report = json.loads(run("doctor", "--json"))
    validator("doctor").validate(report)
    assert report["ok"] is True
    schema = json.loads((FORMATS / "doctor.schema.json").read_text())
    names = schema["properties"]["checks"]["items"]["properties"]["name"]["enum"]
    assert [check["name"] for check in report["checks"]] == names
    (tmp_path / "file").write_text("x")
    report = json.loads(run("doctor", "--json", "--disk-dir", tmp_path / "file", status=1))
    validator("doctor").validate(report)
    assert report["ok"] is False


def test_predictions_are_valid(run):
    arguments = ["--hf", DATA / "hf_gpt2.json", "--batch", 1, "--seq", 32, "--hardware", DATA / "hardware_disk.json"]
    prediction = json.loads(run("predict", *arguments, "--json"))
    validator("predict").validate(prediction)
    validator("predict").validate(json.loads(run("predict", *arguments, "--ranks", "4", "--ddp", "--json")))
    arguments[1] = DATA / "hf_llama.json"
    divided = ["--ranks", 8, "--tp", 2, "--sp", "--pp", 2, "--fsdp", "--mixed", "--batch", 4, "--seq", 32]
    parts = run("predict", *arguments[:2], *divided, *arguments[6:], "--technique", "keep", "--json")
    validator("predict").validate(json.loads(parts))
    validator("plan").validate(prediction["plan"])
    assert len(prediction["layers"]) == 12
    assert prediction["smallest_budget_bytes"] <= prediction["need_bytes"]
    validator("graph").validate(json.loads(run("predict", *arguments, "--graph")))


def test_frontiers_are_valid_and_monotone(run):
    """A larger budget is never slower, and no peak exceeds its budget."""
    arguments = ["--graph", DATA / "graph_small.json", "--hardware", DATA / "hardware_disk.json"]
    frontier = json.loads(run("plan", *arguments, "--sweep", 40, "--json"))
    validator("frontier").validate(frontier)
    points = frontier["points"]
    assert len(points) == 40 and points[0]["budget_bytes"] == frontier["need_bytes"]
    assert all(point["peak_bytes"] <= point["budget_bytes"] for point in points)
    for larger, smaller in itertools.pairwise(points):
        assert larger["budget_bytes"] > smaller["budget_bytes"]
        assert larger["step_ns"] <= smaller["step_ns"]
    below = str(points[-1]["budget_bytes"] - 1)
    assert run("plan", *arguments, "--budget", below, status=1) == ""
