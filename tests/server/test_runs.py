"""Runs: made once per key, steps counted once, listed by pages, followed live, compared, deleted."""

from __future__ import annotations

import http.client
import json
import math

from server_support import Client, Server, steps


def test_a_key_makes_one_run(program: Client, key) -> None:
    name = key()
    first = program.begin_run(name, name="a")
    assert program.begin_run(name, name="a") == first
    other = program.send("POST", "/api/v1/runs", {"model": "Other"}, **{"Idempotency-Key": name})
    assert other.status == 409
    for bad in ("", "a b", "x" * 65, "a/b"):
        answer = program.send("POST", "/api/v1/runs", {"model": "M"}, **{"Idempotency-Key": bad})
        assert answer.status == 400, bad


def test_a_client_that_lost_its_place_is_told_it(program: Client, key) -> None:
    name = key()
    sent = {"Idempotency-Key": name}
    first = program.send("POST", "/api/v1/runs", {"model": "M"}, **sent).json
    assert first == {"id": first["id"], "last_sequence": 0, "last_step": 0}
    for sequence in (1, 2):
        program.append(first["id"], sequence, steps(10 * sequence, 5))
    again = program.send("POST", "/api/v1/runs", {"model": "M"}, **sent)
    assert again.status == 200 and again.json == {"id": first["id"], "last_sequence": 2, "last_step": 24}


def test_a_run_says_what_it_was_told(program: Client, key) -> None:
    told = {
        "project": "nlp", "name": "baseline", "machine": "eight cores", "graph_digest": "ab12",
        "versions": {"memscale": "0.1.0"}, "config": {"mode": "balanced"}, "budget_bytes": 4_000_000_000,
        "predicted_peak_bytes": 3_870_000_000, "predicted_step_ns": 9_360_000_000,
    }  # fmt: skip
    run = program.begin_run(key(), **told)
    shown = program.get(f"/api/v1/runs/{run}").json
    assert {name: shown[name] for name in told} == told
    assert shown["outcome"] == "running" and shown["started_at"].endswith("Z") and shown["finished_at"] is None
    assert {"nlp"} <= {item["name"] for item in program.get("/api/v1/projects").json["items"]}


def test_a_batch_counts_once_and_a_gap_is_told(program: Client, key) -> None:
    run = program.begin_run(key())
    assert program.append(run, 1, steps(1, 10)).json == {"last_sequence": 1, "last_step": 10, "counted": True}
    assert program.append(run, 1, steps(1, 15)).json == {"last_sequence": 1, "last_step": 10, "counted": False}
    gap = program.append(run, 3, steps(21, 10))
    assert gap.status == 409 and "Batch 2 is missing" in gap.json["detail"]
    assert program.append(run, 2, steps(11, 10)).json["counted"]
    assert program.append(run, 3, steps(20, 1)).status == 422  # steps rise over batches too
    assert program.append(run, 3, steps(21, 10)).json["counted"]
    shown = program.get(f"/api/v1/runs/{run}").json
    assert (shown["step_count"], shown["last_step"], shown["last_sequence"]) == (30, 30, 3)
    assert shown["peak_bytes"] == 3_900_030_000
    assert shown["mean_step_ns"] == 900_000_000 + 15
    columns = program.get(f"/api/v1/runs/{run}/steps").json["columns"]
    assert columns["step"] == list(range(1, 31))
    assert columns["peak_bytes"] == [3_900_000_000 + 1000 * number for number in range(1, 31)]
    assert columns["tier_bytes"] == [None] * 30


def test_values_of_any_size_come_back(program: Client, key) -> None:
    run = program.begin_run(key())
    values = [0, 1, 127, 128, 2**62, None, 2**62, 0, 12345678901234]
    sent = [{"step": 1 + 3 * i, "peak_bytes": value} for i, value in enumerate(values)]
    assert program.append(run, 1, sent).status == 200
    columns = program.get(f"/api/v1/runs/{run}/steps").json["columns"]
    assert columns["peak_bytes"] == values
    assert columns["step"] == [item["step"] for item in sent]


def test_what_are_no_steps_is_refused_and_changes_nothing(program: Client, key) -> None:
    run = program.begin_run(key())
    for bad in (
        {}, [], "steps", {"step": []}, {"step": list(range(1, 1002))}, {"step": [0]}, {"step": [1.5]}, {"step": ["1"]},
        {"step": [None]}, {"step": [1, 1]}, {"step": [2, 1]}, {"step": 1}, {"peak_bytes": [1]},
        {"step": [1], "peak_bytes": [-1]}, {"step": [1], "peak_bytes": [2**62 + 1]},
        {"step": [1], "peak_bytes": [True]},
        {"step": [1, 2], "peak_bytes": [1]}, {"step": [1], "peak_bytes": 1}, {"step": [1], "loss": [3]},
    ):  # fmt: skip
        assert program.send_batch(run, 1, bad).status == 422, bad
    for bad in (0, -1, 1.5, "1", None, 2**63):
        assert program.send_batch(run, bad, {"step": [1]}).status in (400, 422), bad
    assert program.get(f"/api/v1/runs/{run}").json["last_sequence"] == 0


def test_many_steps_become_so_many_points(program: Client, key) -> None:
    run = program.begin_run(key())
    for sequence in range(1, 4):
        assert program.append(run, sequence, steps(1 + 1000 * (sequence - 1), 1000)).status == 200
    page = program.get(f"/api/v1/runs/{run}/steps?points=100").json
    assert page["steps_per_point"] == 30 and len(page["columns"]["step"]) == 100
    assert page["columns"]["peak_bytes"][0] == 3_900_000_000 + 30_000  # the largest of 30
    assert page["columns"]["step_ns"][0] == 900_000_000 + 15  # the mean, rounded down
    after = program.get(f"/api/v1/runs/{run}/steps?after=2990").json["columns"]["step"]
    assert after == list(range(2991, 3001))
    for bad in ("points=0", "points=5001", "points=x", "after=-1", "after=1e3"):
        assert program.get(f"/api/v1/runs/{run}/steps?{bad}").status == 400, bad


def test_a_run_ends_once(program: Client, key) -> None:
    run = program.begin_run(key())
    assert program.append(run, 1, steps(1, 5)).status == 200
    finish = f"/api/v1/runs/{run}/finish"
    assert program.send("POST", finish, {"outcome": "done"}).status == 422
    assert program.send("POST", finish, {"outcome": "finished", "counters": {"steps": 5}}).status == 204
    assert program.send("POST", finish, {"outcome": "finished"}).status == 204
    assert program.send("POST", finish, {"outcome": "failed"}).status == 409
    assert program.append(run, 1, steps(1, 5)).json["counted"] is False  # a late repetition is no error
    assert program.append(run, 2, steps(6, 5)).status == 409
    shown = program.get(f"/api/v1/runs/{run}").json
    assert shown["outcome"] == "finished" and shown["counters"] == {"steps": 5} and shown["finished_at"] is not None


def test_pages_of_a_list_hold_every_run_once(program: Client, key) -> None:
    project = key()
    made = {program.begin_run(key(), project=project, name=f"run {i}") for i in range(25)}
    seen: list[str] = []
    cursor = ""
    for _ in range(math.ceil(25 / 7)):
        page = program.get(f"/api/v1/runs?project={project}&limit=7{cursor}").json
        seen += [item["id"] for item in page["items"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert page["next_cursor"] is None
    assert len(seen) == 25 and set(seen) == made
    for bad in ("limit=0", "limit=201", "cursor=x", "cursor=5", "cursor=-5-r0000000000000000", "cursor=5-'"):
        assert program.get(f"/api/v1/runs?{bad}").status == 400, bad


def test_a_list_is_filtered(program: Client, key) -> None:
    project = key()
    run = program.begin_run(key(), project=project, model="Llama")
    program.begin_run(key(), project=project, model="GPT2")
    program.send("POST", f"/api/v1/runs/{run}/finish", {"outcome": "failed"})
    for query, count in (("model=Llama", 1), ("outcome=failed", 1), ("outcome=running", 1), ("model=x", 0), ("", 2)):
        assert len(program.get(f"/api/v1/runs?project={project}&{query}").json["items"]) == count, query
    assert program.get("/api/v1/runs?project=%27%20OR%201%3D1%20--").json["items"] == []


def test_two_runs_are_compared(program: Client, key) -> None:
    one, other = program.begin_run(key()), program.begin_run(key())
    program.append(one, 1, [{"step": 1, "peak_bytes": 1000, "step_ns": 100}])
    program.append(other, 1, [{"step": 1, "peak_bytes": 1500, "step_ns": 50}])
    both = program.get(f"/api/v1/runs/{one}/compare/{other}").json
    assert both["other_permille"] == {"peak_bytes": 1500, "mean_step_ns": 500}
    assert (both["one"]["id"], both["other"]["id"]) == (one, other)


def test_a_run_of_another_team_is_not_compared(program: Client, stranger: Client, server: Server, key) -> None:
    own = program.begin_run(key())
    theirs = stranger.begin_run(key())
    assert program.get(f"/api/v1/runs/{own}/compare/{theirs}").status == 404
    assert program.get(f"/api/v1/runs/{own}/compare/r0000000000000000").status == 404


def test_deleting_a_run_takes_its_steps_along(owner: Client, program: Client, key) -> None:
    run = program.begin_run(key())
    program.append(run, 1, steps(1, 3))
    assert owner.send("DELETE", f"/api/v1/runs/{run}").status == 204
    assert program.get(f"/api/v1/runs/{run}").status == 404
    assert program.append(run, 2, steps(4, 3)).status == 404


def test_a_plan_comes_back(program: Client, key) -> None:
    plan = {
        "entries": [{"name": "layer.0", "technique": "recompute", "rule": "pressure", "saved_bytes": 5, "cost_ns": 7}]
    }
    run = program.begin_run(key(), plan=plan)
    assert program.get(f"/api/v1/runs/{run}/plan").json == plan
    assert program.get(f"/api/v1/runs/{program.begin_run(key())}/plan").status == 404


def read_event(stream: http.client.HTTPResponse) -> dict:
    """The next event that has data."""
    while True:
        line = stream.readline()
        assert line, "the stream has ended"
        if line.startswith(b"data: "):
            return json.loads(line[6:])


def test_a_live_run_is_followed(server: Server, program: Client, key) -> None:
    run = program.begin_run(key())
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", f"/api/v1/runs/{run}/events", headers={"Authorization": f"Bearer {program.token}"})
    stream = connection.getresponse()
    assert stream.status == 200 and stream.getheader("Content-Type") == "text/event-stream"
    stream.readline()  # it has begun: whatever is appended from now on is told
    for sequence in (1, 2):
        program.append(run, sequence, steps(1 + 5 * (sequence - 1), 5))
        event = read_event(stream)
        assert event["sequence"] == sequence
        assert event["columns"]["step"] == list(range(1 + 5 * (sequence - 1), 6 + 5 * (sequence - 1)))
    program.append(run, 2, steps(6, 5))  # counted before: nothing is told
    other = program.begin_run(key())
    program.append(other, 1, steps(1, 5))
    program.send("POST", f"/api/v1/runs/{run}/finish", {"outcome": "finished"})
    assert read_event(stream) == {"finished": True}
    connection.close()


def test_a_team_has_a_quota(data, key) -> None:
    from server_support import first_team, make_token, sign_up

    server = Server(data, "--team-quota", "100")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        program = Client(server, make_token(owner, first_team(owner), "runs:write"))
        run = program.begin_run("one")
        assert program.append(run, 1, steps(1, 100)).status == 200
        answer = program.send("POST", "/api/v1/runs", {"model": "M"}, **{"Idempotency-Key": "two"})
        assert answer.status == 507
        statuses = [program.append(run, sequence, steps(100 * sequence, 1)).status for sequence in range(2, 70)]
        assert set(statuses[:62]) == {200} and statuses[62] == 507  # looked at with every 64th batch
        assert owner.send("DELETE", f"/api/v1/runs/{run}").status == 204
        program.begin_run("three")
    finally:
        server.stop()
