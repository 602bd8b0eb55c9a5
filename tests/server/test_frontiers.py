"""Frontiers as jobs: the program's bytes, refusals, what a restart and a kill leave, and the worker's limits."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
from typing import Any

from databases import choice
from server_support import PATIENCE_S, PROGRAM, ROOT, Client, Server, first_team, make_token, sign_up
from test_push import wait_until
from test_services import DATA, documents, program_of


def ended(client: Client, job: str) -> dict[str, Any]:
    """The job once it is done or has failed."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        shown = client.get(f"/api/v1/frontiers/{job}").json
        if shown["finished_at"] is not None:
            return shown
        time.sleep(0.05)
    raise AssertionError(shown)


def begin(client: Client, body: dict[str, Any]) -> str:
    answer = client.send("POST", "/api/v1/frontiers", body)
    assert answer.status == 202 and answer.json["state"] == "queued", answer.text
    assert answer.headers["location"] == f"/api/v1/frontiers/{answer.json['id']}"
    return answer.json["id"]


def test_a_frontier_is_that_of_the_program_byte_for_byte(program: Client) -> None:
    job = begin(program, {**documents(), "points": 5})
    shown = ended(program, job)
    assert (shown["state"], shown["points"], shown["points_done"], shown["problem"]) == ("done", 5, 5, None)
    line = [program_of(PROGRAM), "plan", "--sweep", "5", "--json"]
    line += ["--graph", str(DATA / "graph_small.json"), "--hardware", str(DATA / "hardware_disk.json")]
    expected = subprocess.run(line, capture_output=True, check=True).stdout
    result = program.get(f"/api/v1/frontiers/{job}/result")
    assert result.status == 200 and result.body == expected
    schema = json.loads((ROOT / "docs/formats/frontier.schema.json").read_text())
    assert {"points"} <= set(schema["properties"]) and len(result.json["points"]) == 5


def test_what_can_not_be_planned_fails_with_a_reason(program: Client) -> None:
    shown = ended(program, begin(program, {**documents(), "graph": {}, "points": 2}))
    assert shown["state"] == "failed" and "graph" in shown["problem"]
    assert program.get(f"/api/v1/frontiers/{shown['id']}/result").status == 404


def test_requests_that_are_none_are_refused(program: Client) -> None:
    good = documents()
    for bad, part in (
        (good, "points"), ({**good, "points": 0}, "points"), ({**good, "points": 201}, "points"),
        ({**good, "points": 2, "extra": 1}, "extra"), ({**good, "points": 2, "graph": []}, "graph"),
        ({"graph": good["graph"], "points": 2}, "hardware"),
    ):  # fmt: skip
        answer = program.send("POST", "/api/v1/frontiers", bad)
        assert answer.status == 422 and part in answer.json["detail"], bad.keys()


def large() -> dict[str, Any]:
    """Takes a minute under a sanitizer, and seconds elsewhere."""
    return {**documents(), "points": 200}


def workers_of(server: Server) -> list[int]:
    children = pathlib.Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return [int(pid) for path in children for pid in path.read_text().split()]


def test_a_job_outlives_a_stop_and_a_kill_of_the_server_and_not_of_its_worker(data: pathlib.Path) -> None:
    server = Server(data, "--limits", "1000000")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        token = make_token(owner, first_team(owner), "runs:read")
        job = begin(Client(server, token), large())
        for how in (signal.SIGTERM, signal.SIGKILL):
            (worker,) = wait_for_worker(server)
            shown = Client(server, token).get(f"/api/v1/frontiers/{job}").json
            while shown["points_done"] == 0:
                assert shown["state"] == "running"
                shown = Client(server, token).get(f"/api/v1/frontiers/{job}").json
            assert shown["points_done"] < 200
            server.stop(how)
            wait_until(lambda pid=worker: not is_running(pid))
            server = Server(data, "--limits", "1000000")
        client = Client(server, token)
        (worker,) = wait_for_worker(server)
        limits = pathlib.Path(f"/proc/{worker}/limits").read_text()
        assert limit_of(limits, "Max cpu time") == "600" and limit_of(limits, "Max file size") == "0"
        assert len(list(pathlib.Path(f"/proc/{worker}/fd").iterdir())) == 3  # neither database nor network
        os.kill(worker, signal.SIGKILL)
        shown = ended(client, job)
        assert shown["state"] == "failed" and "memory" in shown["problem"]
        assert ended(client, begin(client, {**documents(), "points": 1}))["state"] == "done"
    finally:
        server.stop()


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    return False


def limit_of(limits: str, name: str) -> str:
    return next(line for line in limits.splitlines() if line.startswith(name))[len(name) :].split()[0]


def wait_for_worker(server: Server) -> list[int]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = workers_of(server)
        if found and "frontier-worker" in pathlib.Path(f"/proc/{found[0]}/cmdline").read_text():
            time.sleep(0.2)  # until it has limited itself
            return found
        time.sleep(0.01)
    raise AssertionError("no worker")


def test_only_so_many_wait(data: pathlib.Path) -> None:
    server = Server(data, "--limits", "1000000")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        client = Client(server, make_token(owner, first_team(owner), "runs:read"))
        statuses = [client.send("POST", "/api/v1/frontiers", large()).status for _ in range(9)]
        assert statuses[:8] == [202] * 8 and statuses[8] in (202, 429)  # one may be done already
        assert int(choice.now.sql(data, "SELECT count(*) FROM job WHERE finished_at IS NULL")) <= 8
    finally:
        server.stop()
