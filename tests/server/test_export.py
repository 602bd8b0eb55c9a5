"""What an account's export has: every column of the schema that is of an account, but for secrets; every step."""

from __future__ import annotations

import base64
import json
import pathlib
from typing import Any

from databases import choice
from server_support import Client, Server, first_team, invite, make_token, sign_up, steps
from test_artifacts import GRAPH, put
from test_frontiers import ended
from test_run_frontier import begin, stored_run
from test_second_factor import set_up

# Where the export has a column: the member's path, "[]" for the items of a list.
TOLD = {
    "account": {"id": "account.id", "email": "account.email", "name": "account.name",
                "is_operator": "account.is_operator", "created_at": "account.created_at"},
    "session": {"created_at": "sessions[].created_at", "expires_at": "sessions[].expires_at"},
    "team": {"id": "teams[].id", "name": "teams[].name", "created_at": "teams[].created_at"},
    "member": {"team": "teams[].id", "account": "account.id", "role": "teams[].role", "joined_at": "teams[].joined_at"},
    "invitation": {"id": "invitations[].id", "team": "invitations[].team", "role": "invitations[].role",
                   "created_by": "account.id", "created_at": "invitations[].created_at",
                   "expires_at": "invitations[].expires_at"},
    "token": {"id": "tokens[].id", "team": "tokens[].team", "account": "account.id", "name": "tokens[].name",
              "scopes": "tokens[].scopes", "created_at": "tokens[].created_at",
              "last_used_at": "tokens[].last_used_at"},
    "project": {"name": "runs[].project", "team": "runs[].team"},
    "run": {"account": "account.id", "versions_json": "runs[].versions", "config_json": "runs[].config",
            "plan_json": "runs[].plan", "counters_json": "runs[].counters", "sum_step_ns": "runs[].mean_step_ns",
            **{name: f"runs[].{name}" for name in (
                "id", "team", "project", "idempotency_key", "name", "model", "machine", "graph_digest", "budget_bytes",
                "predicted_peak_bytes", "predicted_step_ns", "peak_bytes", "outcome", "started_at", "finished_at",
                "step_count", "last_step", "last_sequence", "stored_bytes")}},
    "batch": {"run": "runs[].id", "data": "runs[].steps.step"},
    "artifact": {"run": "runs[].id", "kind": "runs[].artifacts[].kind", "bytes": "runs[].artifacts[].bytes",
                 "stored_at": "runs[].artifacts[].stored_at", "data": "runs[].artifacts[].content"},
    "job": {"account": "account.id", "request_json": "frontiers[].request", "result_json": "frontiers[].result",
            **{name: f"frontiers[].{name}" for name in (
                "id", "team", "run", "state", "points", "points_done", "problem", "created_at", "started_at",
                "finished_at")}},
    "second_factor": {"account": "account.id", "confirmed_at": "second_factor.confirmed_at"},
    "recovery_code": {"account": "second_factor.recovery_codes_left"},
    "pending_sign_in": {"account": "account.id", "tries_left": "pending_sign_ins[].tries_left",
                        "created_at": "pending_sign_ins[].created_at", "expires_at": "pending_sign_ins[].expires_at"},
    "audit": {name: f"audit[].{name}" for name in ("number", "happened_at", "account", "team", "verb", "object")},
}  # fmt: skip
# Nobody is told these again: a reader of the export could sign in with them, or guess offline.
SECRET = {
    "account": {"password_hash"}, "session": {"hash", "account"}, "invitation": {"hash"}, "token": {"hash"},
    "second_factor": {"secret", "last_step", "started_at"}, "recovery_code": {"hash"}, "pending_sign_in": {"hash"},
}  # fmt: skip
# How the server stores what is told otherwise: places, and hashes of what is there in full.
INNER = {
    "project": {"id", "created_at"}, "run": {"request_hash"}, "artifact": {"hash"}, "audit": {"hash"},
    "batch": {"sequence", "first_step", "last_step", "steps"},
}  # fmt: skip
OF_NOBODY = {"telemetry", "bucket", "schema_version"}


def schema(data: pathlib.Path) -> dict[str, set[str]]:
    """The database's own list of its columns."""
    text = (
        "SELECT group_concat(t.name || '.' || c.name) FROM sqlite_master t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table'"
        if choice.now.name == "sqlite"
        else "SELECT string_agg(table_name || '.' || column_name, ',') FROM information_schema.columns "
        "WHERE table_schema = 'public'"
    )
    tables: dict[str, set[str]] = {}
    for column in choice.now.sql(data, text).split(","):
        table, name = column.split(".")
        tables.setdefault(table, set()).add(name)
    return tables


def find(value: Any, path: str) -> list[Any]:
    """All values at a path."""
    for part in path.split("."):
        name, is_list = part.removesuffix("[]"), part.endswith("[]")
        found = [item[name] for item in (value if isinstance(value, list) else [value]) if name in item]
        value = [item for items in found for item in items] if is_list else found
    return value if isinstance(value, list) else [value]


def test_every_column_of_an_account_is_exported(data: pathlib.Path) -> None:
    server = Server(data, "--limits", "1000000")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        team = first_team(owner)
        token = make_token(owner, team, "runs:write", "runs:read")
        program = Client(server, token)
        secrets = [token, invite(owner, team, "viewer")]
        run = stored_run(program, "one", "graph", "hardware", "config")
        full = {"project": "nlp", "name": "n", "machine": "m", "graph_digest": "ab12", "versions": {"memscale": "1"},
                "config": {"mode": "fast"}, "plan": {"entries": [1]},
                "budget_bytes": 4_000_000_000, "predicted_peak_bytes": 3_870_000_000,
                "predicted_step_ns": 890_000_000}  # fmt: skip
        other = program.begin_run("two", **full)
        report = b"<p>\xff\x00</p>"
        assert put(program, other, "report", report).status == 201
        for sequence in range(1, 4):
            assert program.append(other, sequence, steps(1000 * sequence, 1000)).status == 200
        program.send("POST", f"/api/v1/runs/{other}/finish", {"outcome": "failed", "counters": {"steps": 3000}})
        ended(program, begin(program, run, 2).json["id"])
        secrets += codes_of(owner)
        Client(server).sign_in("owner@example.com")  # waits for its code
        answer = owner.get("/api/v1/account")
        assert answer.status == 200 and answer.headers["content-disposition"] == "attachment"
        exported = answer.json
        tables = schema(data)
        assert set(tables) - OF_NOBODY == set(TOLD)
        for table, columns in TOLD.items():
            known = set(columns) | SECRET.get(table, set()) | INNER.get(table, set())
            assert tables[table] == known, table
            for column, path in columns.items():
                found = find(exported, path)
                is_empty = table == "job" and column in ("request_json", "problem")  # this one is done
                assert found and (is_empty or any(value is not None for value in found)), (table, column)
        assert not [secret for secret in secrets if secret in answer.text]
        (shown,) = [item for item in exported["runs"] if item["id"] == other]
        assert {name: shown[name] for name in full} == full and shown["counters"] == {"steps": 3000}
        sent = [step for sequence in range(1, 4) for step in steps(1000 * sequence, 1000)]
        for name in sent[0]:
            assert shown["steps"][name] == [step[name] for step in sent]  # not thinned
        assert shown["steps"]["tier_bytes"] == [None] * 3000
        assert base64.b64decode(shown["artifacts"][0]["content_base64"]) == report
        (shown,) = [item for item in exported["runs"] if item["id"] == run]
        assert [item["kind"] for item in shown["artifacts"]] == ["config", "graph", "hardware"]
        assert shown["artifacts"][1]["content"]["version"] == 1 and shown["steps"]["step"] == []
        assert exported["next_cursor"] is None and exported["frontiers"][0]["result"]["points"]
        assert {"token made", "second factor set up"} <= {row["verb"] for row in exported["audit"]}
    finally:
        server.stop()


def codes_of(client: Client) -> list[str]:
    authenticator, codes = set_up(client)
    return [authenticator.base32, *codes]


def test_what_is_long_comes_in_parts(data: pathlib.Path) -> None:
    server = Server(data, "--limits", "1000000")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        program = Client(server, make_token(owner, first_team(owner), "runs:write", "runs:read"))
        large = json.dumps({"x": "a" * 15_900_000}).encode()
        runs = [program.begin_run(f"run{number}") for number in range(6)]
        for run in runs:
            assert put(program, run, "graph", large).status == 201
        part = owner.get("/api/v1/account").json
        seen = [item["id"] for item in part["runs"]]
        assert 1 < len(seen) < 6 and part["account"]["email"] == "owner@example.com"
        while part["next_cursor"] is not None:
            part = owner.get(f"/api/v1/account?cursor={part['next_cursor']}").json
            assert part.keys() == {"runs", "next_cursor"}
            seen += [item["id"] for item in part["runs"]]
        assert seen == sorted(runs, key=seen.index) and len(seen) == len(set(seen)) == 6
        for bad in ("x", "5", "-1-r0000000000000000", "5-x"):
            assert owner.get(f"/api/v1/account?cursor={bad}").status == 400, bad
    finally:
        server.stop()


def test_nobody_exports_what_others_sent(owner: Client, stranger: Client, program: Client, key: Any) -> None:
    run = program.begin_run(key())
    put(program, run, "graph", GRAPH)
    theirs = stranger.get("/api/v1/account").json
    assert run not in json.dumps(theirs)
    assert theirs["audit"] and all(stranger.account in (row["account"], row["object"]) for row in theirs["audit"])
    assert program.get("/api/v1/account").status == 403  # a token exports nothing
