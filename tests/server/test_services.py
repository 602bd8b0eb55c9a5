"""Limits, telemetry, plans, the API's document and the files that are built in."""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import time

import databases
import jsonschema
import pytest
import referencing
from server_support import PATIENCE_S, PROGRAM, ROOT, Client, Server, run_program, sign_up, steps

# ---- limits ----------------------------------------------------------------------


def test_guesses_are_bounded_and_lock_nobody_else_out(data: pathlib.Path) -> None:
    # One guess a minute, so that a machine that stands still for seconds gives none away.
    server = Server(data, "--trust-proxy", "127.0.0.1", "--limits", "10")
    try:
        sign_up(server, server.first_key(), "owner")

        def guess(address: str, password: str) -> int:
            body = f"csrf=&email=owner%40example.com&password={password.replace(' ', '+')}"
            headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Forwarded-For": address}
            answer = Client(server).request("POST", "/sign-in", body, headers)
            if answer.status == 429:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
            return answer.status

        assert [guess("203.0.113.1", "wrong") for _ in range(3)] == [401, 429, 429]
        assert guess("203.0.113.1", "correct horse battery") == 429  # even the right one, from there
        assert guess("203.0.113.2", "correct horse battery") == 303  # the owner is not locked out
        assert [guess(f"2001:db8::{i}", "wrong") for i in range(3)] == [401, 429, 429]  # one customer's addresses
    finally:
        server.stop()


def test_too_many_requests_of_a_token_are_told_when_to_come_back(data: pathlib.Path) -> None:
    from server_support import first_team, make_token

    server = Server(data, "--limits", "10")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        program = Client(server, make_token(owner, first_team(owner), "runs:read"))
        statuses = []
        for _ in range(60):
            answer = program.get("/api/v1/projects")
            statuses.append(answer.status)
        assert answer.status == 429 and answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) >= 1
        assert statuses.count(200) < 60
        assert Client(server).get("/healthz").status == 200
    finally:
        server.stop()


# ---- telemetry ----------------------------------------------------------------------

EVENT = {
    "schema_version": 2, "event": "wrap_called", "memscale_version": "0.1", "architecture": "decoder",
    "parameters": "100M-1B",
    "device": "cpu", "device_memory": "18-36GB", "mode": "balanced", "budget_given": True, "layers": "9-16",
    "pressure": "1.1-2", "decision_source": "user_config", "techniques": ["recompute", "exact_loss_head"],
    "peak": "0.25-0.5", "step": "0.85-1.1", "measured_peak": "unknown", "outcome": "planned",
}  # fmt: skip


def schema_validator(*names: str) -> jsonschema.Draft202012Validator:
    """Of the first schema; the others are those that it refers to."""
    found = [json.loads((ROOT / "docs/formats" / name).read_text()) for name in names]
    resources = [(name, referencing.Resource.from_contents(schema)) for name, schema in zip(names, found, strict=True)]
    return jsonschema.Draft202012Validator(found[0], registry=referencing.Registry().with_resources(resources))


def send_event(server: Server, event: object) -> int:
    return Client(server).send("POST", "/api/v1/telemetry", event).status


def test_an_event_is_stored_without_an_address(server: Server, owner: Client) -> None:
    before = owner.get("/metrics").text
    assert send_event(server, EVENT) == 204
    after = owner.get("/metrics").text
    count = [int(text.rsplit("memscale_server_telemetry_events ", 1)[1].split()[0]) for text in (before, after)]
    assert count[1] == count[0] + 1
    deadline = time.monotonic() + PATIENCE_S
    lines: list[dict] = []
    while not lines and time.monotonic() < deadline:
        lines = [line for line in server.log() if line.get("route") == "/api/v1/telemetry"]
    assert lines and all("address" not in line for line in lines)


def test_who_sent_an_event_is_in_no_line(server: Server, owner: Client, program: Client) -> None:
    known = len(server.log())
    for client in (owner, program):
        assert client.send("POST", "/api/v1/telemetry", EVENT).status == 204
    deadline = time.monotonic() + PATIENCE_S
    lines: list[dict] = []
    while len(lines) < 2 and time.monotonic() < deadline:
        lines = [line for line in server.log()[known:] if line.get("route") == "/api/v1/telemetry"]
    assert len(lines) == 2 and all("account" not in line and "address" not in line for line in lines)


def test_stored_events_are_printed_a_line_each(data: pathlib.Path) -> None:
    place = databases.choice.now.options(data)
    server = Server(data)
    try:
        assert run_program("telemetry", *place).stdout == ""
        for layers in ("9-16", "<9", "9-16"):
            assert send_event(server, {**EVENT, "layers": layers}) == 204
        printed = run_program("telemetry", *place)
    finally:
        server.stop()
    assert printed.returncode == 0, printed.stderr
    events = [json.loads(line) for line in printed.stdout.splitlines()]
    assert sorted(event["layers"] for event in events) == ["9-16", "9-16", "<9"]
    assert all({**event, "layers": "9-16"} == EVENT for event in events)
    assert run_program("telemetry").returncode == run_program("telemetry", *place, "file").returncode == 2


def test_events_that_cannot_be_read_are_an_error(tmp_path: pathlib.Path) -> None:
    missing = run_program("telemetry", "--data", tmp_path)
    assert missing.returncode == 1 and "memscale.db" in missing.stderr


@pytest.mark.parametrize("name", [*EVENT, "extra"])
def test_an_event_that_says_anything_else_is_refused(server: Server, name: str) -> None:
    validator = schema_validator("telemetry.schema.json", "technique.schema.json")
    for value in ("x", 1, True, None, [], ["keep", "keep"], {"a": 1}, "<0.25; rm", "1.1.1"):
        event = {**EVENT, name: value}
        allowed = validator.is_valid(event)
        assert send_event(server, event) == (204 if allowed else 422), (name, value)
    assert send_event(server, {**EVENT, "memscale_version": "0.1\n"}) == 422
    if name in EVENT:
        assert send_event(server, {key: value for key, value in EVENT.items() if key != name}) == 422


# ---- plans -------------------------------------------------------------------------

DATA = ROOT / "tests/cli/data"


def documents() -> dict[str, object]:
    return {
        "graph": json.loads((DATA / "graph_small.json").read_text()),
        "hardware": json.loads((DATA / "hardware_disk.json").read_text()),
    }


def program_of(server_program: str) -> str:
    """`memscale`, built beside the server."""
    return str(pathlib.Path(server_program).parents[1] / "memscale")


@pytest.mark.parametrize("hardware", ["hardware_disk.json", "hardware_cpu.json", "hardware_gpu.json"])
def test_a_plan_is_that_of_the_program_byte_for_byte(program: Client, hardware: str) -> None:
    body = {**documents(), "hardware": json.loads((DATA / hardware).read_text())}
    answer = program.send("POST", "/api/v1/plans", body)
    line = [
        program_of(PROGRAM),
        "plan",
        "--graph",
        str(DATA / "graph_small.json"),
        "--hardware",
        str(DATA / hardware),
        "--json",
    ]
    expected = subprocess.run(line, capture_output=True)
    assert expected.returncode == 0
    assert answer.status == 200 and answer.body == expected.stdout


def test_what_can_not_be_planned_is_told(program: Client) -> None:
    good = documents()
    for bad, part in (
        ({**good, "graph": {}}, "graph"),
        ({**good, "hardware": {"version": 99}}, "hardware"),
        ({**good, "config": {"version": 1, "mode": "reckless"}}, "mode"),
        ({"graph": good["graph"]}, "hardware"),
        ({**good, "extra": 1}, "extra"),
    ):
        answer = program.send("POST", "/api/v1/plans", bad)
        assert answer.status == 422 and part in answer.json["detail"], bad.keys()


def test_a_budget_that_nothing_fits_names_the_smallest(program: Client) -> None:
    config = {"version": 1, "memory_budget_gb": 0.000001}
    answer = program.send("POST", "/api/v1/plans", {**documents(), "config": config})
    assert answer.status == 422, answer.text
    assert "smallest" in answer.json["detail"]


# ---- the API's document ---------------------------------------------------------------


def test_the_document_names_every_route_and_no_other(server: Server) -> None:
    document = Client(server).get("/api/v1/openapi.json").json
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    routes = json.loads(subprocess.run([PROGRAM, "routes"], capture_output=True, check=True).stdout)
    assert told == {(route["method"], route["path"]) for route in routes if route["path"].startswith("/api/")}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
            assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}


def test_answers_are_as_the_document_says(server: Server, program: Client, key) -> None:
    document = Client(server).get("/api/v1/openapi.json").json

    def check(method: str, path: str, answer) -> None:
        responses = document["paths"][path][method]["responses"]
        told = responses.get(str(answer.status), document["components"]["responses"]["Problem"])
        media_type = answer.headers["content-type"]
        schema = {**told["content"][media_type]["schema"], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json)

    made = program.send("POST", "/api/v1/runs", {"model": "M"}, **{"Idempotency-Key": key()})
    check("post", "/api/v1/runs", made)
    run = made.json["id"]
    check("post", "/api/v1/runs/{run}/steps", program.append(run, 1, steps(1, 3)))
    check("post", "/api/v1/runs/{run}/steps", program.append(run, 9, steps(1, 3)))
    check("get", "/api/v1/runs/{run}/steps", program.get(f"/api/v1/runs/{run}/steps"))
    check("get", "/api/v1/runs/{run}", program.get(f"/api/v1/runs/{run}"))
    check("get", "/api/v1/runs", program.get("/api/v1/runs"))
    check("get", "/api/v1/runs", program.get("/api/v1/runs?limit=0"))


# ---- assets ----------------------------------------------------------------------

PINNED = {
    "uplot.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


@pytest.mark.parametrize("name", PINNED)
def test_what_others_wrote_is_what_was_reviewed(server: Server, name: str) -> None:
    """uPlot 1.6.32 as npm has it."""
    answer = Client(server).get(f"/assets/{name}")
    assert hashlib.sha256(answer.body).hexdigest() == PINNED[name]


def test_every_file_that_a_page_names_is_there(owner: Client, program: Client, team: str, key) -> None:
    import re

    run = program.begin_run(key())
    for path in ("/runs", f"/runs/{run}", f"/teams/{team}", "/account"):
        for name in re.findall(r'(?:href|src)="(/[^"]*)"', owner.get(path).text):
            assert owner.get(name.replace("&amp;", "&")).status == 200, (path, name)
