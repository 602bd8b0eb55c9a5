"""Teams by hand: forms for members, invitations, tokens and the team's end; what the audit says of it all; last use."""

from __future__ import annotations

import pathlib
import re
import time
from collections.abc import Callable

from databases import choice
from server_support import Client, Server, first_team, invite, make_token, sign_up, steps
from test_artifacts import put
from test_push import wait_until


def members(client: Client, team: str) -> dict[str, str]:
    """Names and roles."""
    return {item["name"]: item["role"] for item in client.get(f"/api/v1/teams/{team}/members").json["items"]}


def new_team(client: Client, name: str) -> str:
    answer = client.send("POST", "/api/v1/teams", {"name": name})
    assert answer.status == 201
    return answer.json["id"]


def join(server: Server, owner: Client, team: str, role: str, name: str) -> Client:
    return sign_up(server, invite(owner, team, role), name)


def test_members_are_changed_and_removed_by_the_page_s_form(server: Server, owner: Client) -> None:
    team = new_team(owner, "Forms")
    one, two = (join(server, owner, team, role, f"forms-{role}") for role in ("viewer", "admin"))
    page = owner.get(f"/teams/{team}").text
    assert page.count(f'action="/teams/{team}/members"') == 3 and one.account in page
    form = f"/teams/{team}/members"
    changed = owner.form(form, account=one.account, role="member")
    assert changed.status == 303 and changed.headers["location"] == f"/teams/{team}"
    assert members(owner, team) == {"owner": "owner", "forms-viewer": "member", "forms-admin": "admin"}
    assert two.form(form, account=one.account, role="owner").status == 403  # more than one's own role
    assert owner.form(form, account=one.account, role="king").status == 422
    assert owner.form(form, account="a0000000000000000", role="viewer").status == 404
    assert owner.form(form, csrf="wrong", account=one.account, role="viewer").status == 403
    assert owner.form(form, account=owner.account, role="viewer").status == 409  # nobody would own it
    assert one.form(form, account=two.account, role="remove").status == 403
    assert members(owner, team)["forms-viewer"] == "member"
    assert two.form(form, account=one.account, role="remove").status == 303
    assert members(owner, team) == {"owner": "owner", "forms-admin": "admin"}
    assert one.get(f"/teams/{team}").status == 404


def test_an_invitation_is_withdrawn_by_the_page_s_form(server: Server, owner: Client, stranger: Client) -> None:
    team = new_team(owner, "Withdrawn")
    secret, kept = invite(owner, team, "viewer"), invite(owner, team, "member")
    items = owner.get(f"/api/v1/teams/{team}/invitations").json["items"]
    (identifier,) = [item["id"] for item in items if item["role"] == "viewer"]
    page = owner.get(f"/teams/{team}").text
    assert page.count(f'action="/teams/{team}/invitations/withdraw"') == 2 and f'value="{identifier}"' in page
    form = f"/teams/{team}/invitations/withdraw"
    viewer = join(server, owner, team, "viewer", "withdrawn-viewer")
    assert "invitations/withdraw" not in viewer.get(f"/teams/{team}").text
    assert viewer.form(form, invitation=identifier).status == 403
    assert stranger.form(form, invitation=identifier).status == 404
    assert owner.form(form, csrf="wrong", invitation=identifier).status == 403
    own = first_team(owner)
    assert owner.form(f"/teams/{own}/invitations/withdraw", invitation=identifier).status == 404  # of another team
    assert owner.form(form, invitation=identifier).status == 303
    assert owner.form(form, invitation=identifier).status == 404
    assert Client(server).get(f"/welcome/{secret}").status == 404
    assert Client(server).get(f"/welcome/{kept}").status == 200
    audit = owner.get(f"/api/v1/teams/{team}/audit").json["items"]
    assert (audit[0]["verb"], audit[0]["object"]) == ("invitation withdrawn", identifier)


def test_a_token_is_revoked_by_the_page_s_form(server: Server, owner: Client) -> None:
    team = new_team(owner, "Revoked")
    tokens = f"/api/v1/teams/{team}/tokens"
    made = owner.send("POST", tokens, {"name": "mine", "scopes": ["runs:read"]}).json
    other = owner.send("POST", tokens, {"name": "other", "scopes": ["runs:read"]}).json
    page = owner.get(f"/teams/{team}/tokens").text
    assert f'name="token" value="{made["id"]}"' in page and made["token"] not in page
    form = f"/teams/{team}/tokens/revoke"
    member = join(server, owner, team, "member", "revoked-member")
    assert member.form(form, token=made["id"]).status == 404  # not one's own
    assert owner.form(form, csrf="wrong", token=made["id"]).status == 403
    assert Client(server, made["token"]).get("/api/v1/runs").status == 200
    revoked = owner.form(form, token=made["id"])
    assert revoked.status == 303 and revoked.headers["location"] == f"/teams/{team}/tokens"
    assert Client(server, made["token"]).get("/api/v1/runs").status == 401
    assert Client(server, other["token"]).get("/api/v1/runs").status == 200
    assert [item["id"] for item in owner.get(tokens).json["items"]] == [other["id"]]


def test_a_token_s_last_use_is_shown(server: Server, owner: Client) -> None:
    team = new_team(owner, "Used")
    tokens = f"/api/v1/teams/{team}/tokens"
    made = owner.send("POST", tokens, {"name": "used", "scopes": ["runs:read", "runs:write"]}).json
    owner.send("POST", tokens, {"name": "unused", "scopes": ["runs:read"]})

    def last_used() -> dict[str, str | None]:
        return {item["name"]: item["last_used_at"] for item in owner.get(tokens).json["items"]}

    assert last_used() == {"used": None, "unused": None}
    before = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    program = Client(server, made["token"])
    assert program.get("/api/v1/runs").status == 200
    program.begin_run("used")  # what is noted goes along with the next write
    wait_until(lambda: last_used()["used"] is not None)
    shown = last_used()
    assert shown["unused"] is None
    assert shown["used"] is not None and before <= shown["used"] <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    assert shown["used"][:10] in owner.get(f"/teams/{team}/tokens").text
    program.begin_run("again")
    assert last_used() == shown  # once a minute is enough


def fill(server: Server, owner: Client, team: str) -> tuple[Client, str]:
    """Something of everything that a team has."""
    program = Client(server, make_token(owner, team, "runs:read", "runs:write"))
    run = program.begin_run("one")
    assert program.append(run, 1, steps(1, 5)).status == 200 and put(program, run, "graph", b"{}").status == 201
    assert program.send("POST", "/api/v1/frontiers", {"graph": {}, "hardware": {}, "points": 1}).status == 202
    invite(owner, team, "viewer")
    return program, run


TABLES = ("team", "member", "invitation", "token", "project", "run", "batch", "artifact", "job")


def check_the_end_of_a_team(data: pathlib.Path, end: Callable[[Client, str], None]) -> None:
    server = Server(data, "--limits", "1000000")

    def counts() -> dict[str, int]:
        return {table: int(choice.now.sql(data, f"SELECT count(*) FROM {table}")) for table in TABLES}

    try:
        owner = sign_up(server, server.first_key(), "owner")
        kept, kept_run = fill(server, owner, first_team(owner))
        before = counts()
        team = new_team(owner, "Ends")
        member = join(server, owner, team, "admin", "member")
        program, run = fill(server, owner, team)
        assert all(count > before[table] for table, count in counts().items())
        assert member.send("DELETE", f"/api/v1/teams/{team}").status == 403  # an admin does not own it
        assert member.form(f"/teams/{team}/delete", name="Ends").status == 403
        end(owner, team)
        assert counts() == before
        assert owner.get(f"/teams/{team}").status == owner.get(f"/runs/{run}").status == 404
        assert owner.send("DELETE", f"/api/v1/teams/{team}").status == 404
        assert program.get("/api/v1/runs").status == 401
        assert member.get("/api/v1/teams").json["items"] == []
        assert kept.get(f"/api/v1/runs/{kept_run}").json["step_count"] == 5
        rows = f"SELECT count(*) FROM audit WHERE team = '{team}' AND verb IN ('team made', 'team deleted')"
        assert choice.now.sql(data, rows) == "2"  # the audit stays
    finally:
        server.stop()


def test_a_team_ends_with_all_that_it_has(data: pathlib.Path) -> None:
    def end(owner: Client, team: str) -> None:
        assert owner.send("DELETE", f"/api/v1/teams/{team}").status == 204

    check_the_end_of_a_team(data, end)


def test_a_team_ends_by_the_page_s_form_if_its_name_is_typed(data: pathlib.Path) -> None:
    def end(owner: Client, team: str) -> None:
        assert f'action="/teams/{team}/delete"' in owner.get(f"/teams/{team}").text
        for name in ("", "ends", "Ends ", "My team"):
            assert owner.form(f"/teams/{team}/delete", name=name).status == 422, name
        assert owner.form(f"/teams/{team}/delete", csrf="wrong", name="Ends").status == 403
        ended = owner.form(f"/teams/{team}/delete", name="Ends")
        assert ended.status == 303 and ended.headers["location"] == "/account"

    check_the_end_of_a_team(data, end)


def test_the_audit_says_who_did_what_to_what(server: Server, owner: Client) -> None:
    team = new_team(owner, "Audited")
    base = f"/api/v1/teams/{team}"
    admin = join(server, owner, team, "admin", "audited-admin")
    member = join(server, owner, team, "member", "audited-member")
    token = admin.send("POST", f"{base}/tokens", {"name": "t", "scopes": ["runs:write"]}).json
    run = Client(server, token["token"]).begin_run("audited")
    assert owner.send("PUT", f"{base}/members/{member.account}", {"role": "viewer"}).status == 204
    assert admin.send("DELETE", f"/api/v1/runs/{run}").status == 204
    assert admin.send("DELETE", f"{base}/tokens/{token['id']}").status == 204
    assert admin.send("DELETE", f"{base}/members/{member.account}").status == 204
    wanted = [
        (owner, "team made", team), (owner, "invitation made", "admin"), (owner, "invitation made", "member"),
        (admin, "token made", token["id"]), (owner, "role changed", member.account), (admin, "run deleted", run),
        (admin, "token revoked", token["id"]), (admin, "member removed", member.account),
    ]  # fmt: skip
    rows = owner.get(f"{base}/audit").json["items"]
    found = [(row["account"], row["verb"], row["object"]) for row in reversed(rows)]
    assert [row for row in found if row in [(who.account, *what) for who, *what in wanted]] == [
        (who.account, *what) for who, *what in wanted
    ]
    assert {row["account_name"] for row in rows} >= {"owner", "audited-admin"}
    assert [row["happened_at"] for row in rows] == sorted((row["happened_at"] for row in rows), reverse=True)
    page = owner.get(f"/teams/{team}").text.split('aria-label="Audit"')[1].split("</table>")[0]
    shown = re.findall(r"<td>([^<]*)</td><td>([^<]*)</td><td>([^<]*)</td></tr>", page)
    assert shown == [(row["account_name"] or row["account"], row["verb"], row["object"]) for row in rows]
    assert 'aria-label="Audit"' not in join(server, owner, team, "member", "audited-other").get(f"/teams/{team}").text
