"""Every route for everyone: the program's own table of routes against what each role may do, here and elsewhere.

What is expected is written down here by verb, not taken from the server.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from server_support import PROGRAM, Client, Server, first_team, invite, make_token, sign_up

ROUTES: list[dict[str, str]] = json.loads(subprocess.run([PROGRAM, "routes"], capture_output=True, check=True).stdout)

# Who gets past the permission in their own team. Everyone else who is signed in gets 403, nobody 401.
PASSES = {
    "PUBLIC": {"anyone", "viewer", "member", "admin", "owner", "reader", "writer", "manager"},
    "SELF": {"viewer", "member", "admin", "owner"},
    "RUN_READ": {"viewer", "member", "admin", "owner", "reader"},
    "PLAN_MAKE": {"viewer", "member", "admin", "owner", "reader"},
    "TEAM_READ": {"viewer", "member", "admin", "owner", "reader"},
    "RUN_WRITE": {"member", "admin", "owner", "writer"},
    "RUN_DELETE": {"admin", "owner", "manager"},
    "TEAM_MANAGE": {"admin", "owner", "manager"},
    "TEAM_OWN": {"owner"},
    "TOKEN_MANAGE": {"member", "admin", "owner"},
    "OPERATE": set(),  # nobody here operates the server
}
WHO = ["anyone", "viewer", "member", "admin", "owner", "reader", "writer", "manager"]
# Allowed, and then the password or code that was sent is none.
WRONG_PASSWORD = {
    ("/sign-in", 401), ("/sign-in/code", 401), ("/account/delete", 403), ("/account/second-factor", 403),
    ("/account/second-factor/codes", 403), ("/account/second-factor/off", 403),
}  # fmt: skip
TOKENS = {"reader": ["runs:read"], "writer": ["runs:write"], "manager": ["admin"]}


class Place:
    """A server with two teams of the same make-up; everything that is tried here may happen."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.first = sign_up(server, server.first_key(), "operator")
        self.teams = {name: self._make_team(name) for name in ("own", "other")}

    def _make_team(self, name: str) -> dict[str, Any]:
        team = self.first.send("POST", "/api/v1/teams", {"name": name}).json["id"]
        who = {
            role: sign_up(self.server, invite(self.first, team, role), f"{name}-{role}")
            for role in ("viewer", "member", "admin", "owner")
        }
        self.first.form(f"/teams/{team}/leave")
        who["anyone"] = Client(self.server)
        for token, scopes in TOKENS.items():
            who[token] = Client(self.server, make_token(who["owner"], team, *scopes))
        run = (
            who["owner"]
            .send("POST", f"/api/v1/runs?team={team}", {"model": "M"}, **{"Idempotency-Key": "k"})
            .json["id"]
        )
        job = who["owner"].send("POST", f"/api/v1/frontiers?team={team}", {"graph": {}, "hardware": {}, "points": 1})
        return {"id": team, "who": who, "run": run, "job": job.json["id"]}


@pytest.fixture(scope="module")
def place(database: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    server = Server(tmp_path_factory.mktemp("permissions"), "--limits", "1000000")
    yield Place(server)
    server.stop()


def ask(client: Client, route: dict[str, str], team: dict[str, Any]) -> int:
    """The status, for a request whose content is refused later: permission alone is seen, and nothing happens."""
    path = route["path"].replace("{team}", team["id"]).replace("{run}", team["run"]).replace("{job}", team["job"])
    for name in ("{other}", "{account}", "{invitation}", "{token}", "{key}", "{file}"):
        path = path.replace(name, "r0000000000000000")
    if route["subject"] == "query":
        path += f"?team={team['id']}"
    if path.endswith("/events"):
        return stream_status(client, path)
    if route["body"] == "form":
        return client.form(path).status
    if route["body"] == "html":
        token = {"X-CSRF-Token": client.csrf()} if client.cookie is not None else {}
        return client.request(route["method"], path, "<p>", {"Content-Type": "text/html", **token}).status
    if route["body"] == "json":
        return client.send(route["method"], path, {"nothing": 1}, **{"Idempotency-Key": "?"}).status
    return client.send(route["method"], path).status


def stream_status(client: Client, path: str) -> int:
    """The status of an answer that does not end."""
    connection = http.client.HTTPConnection("127.0.0.1", client.server.port, timeout=60)
    headers = {"Authorization": f"Bearer {client.token}"} if client.token else {"Cookie": client.cookie or "none"}
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def is_harmful(route: dict[str, str]) -> bool:
    """What would take the team, the run or the account away where it is allowed: told by status 403 and 401 alone."""
    harmful = {("DELETE", "/api/v1/teams/{team}"), ("DELETE", "/api/v1/runs/{run}")}
    forms = {"/runs/{run}/delete", "/teams/{team}/leave", "/sign-out"}
    return (route["method"], route["path"]) in harmful or (route["method"] == "POST" and route["path"] in forms)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route['method']} {route['path']}")
def test_roles(place: Place, route: dict[str, str]) -> None:
    team = place.teams["own"]
    is_page = not route["path"].startswith("/api/") and route["path"] != "/metrics"
    for who in WHO:
        client = team["who"][who]
        allowed = who in PASSES[route["verb"]]
        if allowed and is_harmful(route):
            continue
        status = ask(client, route, team)
        if allowed:
            assert status not in (401, 403) or (route["path"], status) in WRONG_PASSWORD, (who, status)
        elif who == "anyone":
            assert status == (303 if is_page and route["method"] == "GET" else 401), (who, status)
        else:
            assert status == 403, (who, status)


@pytest.mark.parametrize(
    "route", [r for r in ROUTES if r["subject"] != "none"], ids=lambda r: f"{r['method']} {r['path']}"
)
def test_another_team_does_not_exist(place: Place, route: dict[str, str]) -> None:
    own, other = place.teams["own"], place.teams["other"]
    for who in WHO:
        if who == "anyone":
            continue
        assert ask(own["who"][who], route, other) == 404, who
    nowhere = {"id": "t0000000000000000", "run": "r0000000000000000", "job": "j0000000000000000"}
    assert ask(own["who"]["owner"], route, nowhere) == 404


def test_a_token_is_of_one_team(place: Place) -> None:
    """Whatever else its owner is in."""
    both = place.teams["own"]["who"]["owner"]
    key = invite(place.teams["other"]["who"]["owner"], place.teams["other"]["id"], "owner")
    assert both.form(f"/welcome/{key}").status == 303
    token = Client(place.server, make_token(both, place.teams["own"]["id"], "runs:read"))
    assert token.get(f"/api/v1/runs/{place.teams['own']['run']}").status == 200
    assert token.get(f"/api/v1/runs/{place.teams['other']['run']}").status == 404
    assert both.get(f"/api/v1/runs/{place.teams['other']['run']}").status == 200
    both.form(f"/teams/{place.teams['other']['id']}/leave")


def test_roles_are_given_from_above_only(place: Place) -> None:
    team = place.teams["own"]
    admin, owner = team["who"]["admin"], team["who"]["owner"]
    members = f"/api/v1/teams/{team['id']}/members"
    viewer = sign_up(place.server, invite(owner, team["id"], "viewer"), "promoted")
    for role, status in (("member", 204), ("admin", 403), ("owner", 403), ("king", 422)):
        assert admin.send("PUT", f"{members}/{viewer.account}", {"role": role}).status == status, role
        invited = admin.send("POST", f"/api/v1/teams/{team['id']}/invitations", {"role": role}).status
        assert invited == (201 if status == 204 else status), role
    assert admin.send("PUT", f"{members}/{owner.account}", {"role": "viewer"}).status == 403
    assert admin.send("DELETE", f"{members}/{owner.account}").status == 403
    manager = team["who"]["manager"]  # an owner's token, and yet no owner
    assert manager.send("PUT", f"{members}/{viewer.account}", {"role": "owner"}).status == 403
    assert owner.send("PUT", f"{members}/{viewer.account}", {"role": "viewer"}).status == 204
    assert admin.send("DELETE", f"{members}/{viewer.account}").status == 204
    assert viewer.get(f"/api/v1/runs/{team['run']}").status == 404


def test_a_member_that_goes_takes_its_tokens_along(place: Place) -> None:
    team = place.teams["own"]
    owner = team["who"]["owner"]
    member = sign_up(place.server, invite(owner, team["id"], "member"), "leaver")
    token = Client(place.server, make_token(member, team["id"], "runs:read"))
    assert token.get("/api/v1/runs").status == 200
    member.form(f"/teams/{team['id']}/leave")
    assert token.get("/api/v1/runs").status == 401


def test_a_lower_role_reaches_the_token_too(place: Place) -> None:
    team = place.teams["own"]
    owner = team["who"]["owner"]
    member = sign_up(place.server, invite(owner, team["id"], "member"), "lowered")
    token = Client(place.server, make_token(member, team["id"], "runs:write"))
    assert token.send("POST", "/api/v1/runs", {"model": "M"}, **{"Idempotency-Key": "low"}).status == 201
    owner.send("PUT", f"/api/v1/teams/{team['id']}/members/{member.account}", {"role": "viewer"})
    assert token.send("POST", "/api/v1/runs", {"model": "M"}, **{"Idempotency-Key": "low2"}).status == 403


def test_one_revokes_ones_own_tokens_and_admins_all(place: Place) -> None:
    team = place.teams["own"]
    owner, admin = team["who"]["owner"], team["who"]["admin"]
    one = sign_up(place.server, invite(owner, team["id"], "member"), "one")
    two = sign_up(place.server, invite(owner, team["id"], "member"), "two")
    tokens = f"/api/v1/teams/{team['id']}/tokens"
    made = [one.send("POST", tokens, {"name": "mine", "scopes": ["runs:read"]}).json for _ in range(2)]
    assert two.send("DELETE", f"{tokens}/{made[0]['id']}").status == 404
    assert one.send("DELETE", f"{tokens}/{made[0]['id']}").status == 204
    assert Client(place.server, made[0]["token"]).get("/api/v1/runs").status == 401
    assert admin.send("DELETE", f"{tokens}/{made[1]['id']}").status == 204
    assert one.send("POST", tokens, {"name": "too much", "scopes": ["admin"]}).status == 403


def test_metrics_are_the_operators(place: Place) -> None:
    assert place.first.get("/metrics").status == 200
    assert place.teams["own"]["who"]["owner"].get("/metrics").status == 403


def test_first_team_is_the_default(place: Place) -> None:
    viewer = place.teams["own"]["who"]["viewer"]
    assert first_team(viewer) == place.teams["own"]["id"]
    assert place.teams["own"]["run"] in [run["id"] for run in viewer.get("/api/v1/runs").json["items"]]
