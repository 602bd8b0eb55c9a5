"""Every list comes in pages: each item once, in order, also while others are added. What is no cursor is refused."""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from server_support import Client, Server, first_team, invite, make_token, sign_up
from test_frontiers import ended

COUNT = 7
NAMES = ["same", "same", "same", "Ä b-c", 'q"&<i>', "z", "a-1-b"]


class Place:
    """A server with a team that has COUNT of everything, or more."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.owner = sign_up(server, server.first_key(), "owner")
        self.team = first_team(self.owner)
        base = f"/api/v1/teams/{self.team}"
        self.program = Client(server, make_token(self.owner, self.team, "runs:read", "runs:write"))
        for number, name in enumerate(NAMES):
            sign_up(server, invite(self.owner, self.team, ["viewer", "member"][number % 2]), f"m{number}")
            assert self.owner.send("POST", "/api/v1/teams", {"name": name}).status == 201
            assert self.owner.send("POST", f"{base}/tokens", {"name": name, "scopes": ["admin"]}).status == 201
            invite(self.owner, self.team, "viewer")
            self.program.begin_run(f"run{number}", project=f"{name} {number}")
            body = {"graph": {}, "hardware": {}, "points": 1}
            job = self.owner.send("POST", f"/api/v1/frontiers?team={self.team}", body)
            ended(self.program, job.json["id"])
        of_team = f"?team={self.team}"
        self.lists = {
            "runs": f"/api/v1/runs{of_team}", "projects": f"/api/v1/projects{of_team}", "teams": "/api/v1/teams?",
            "members": f"{base}/members?", "invitations": f"{base}/invitations?", "tokens": f"{base}/tokens?",
            "audit": f"{base}/audit?", "frontiers": f"/api/v1/frontiers{of_team}",
        }  # fmt: skip


LISTS = ["runs", "projects", "teams", "members", "invitations", "tokens", "audit", "frontiers"]


@pytest.fixture(scope="module")
def place(database: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    server = Server(tmp_path_factory.mktemp("lists"), "--limits", "1000000")
    yield Place(server)
    server.stop()


def page_of(client: Client, path: str, limit: int, cursor: str | None) -> dict[str, Any]:
    more = f"&cursor={urllib.parse.quote(cursor)}" if cursor is not None else ""
    answer = client.get(f"{path}&limit={limit}{more}")
    assert answer.status == 200, answer.text
    return answer.json


def walk(client: Client, path: str, limit: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = page_of(client, path, limit, cursor)
        assert len(page["items"]) <= limit and (len(page["items"]) == limit or page["next_cursor"] is None)
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items


@pytest.mark.parametrize("name", LISTS)
def test_pages_hold_every_item_once_and_in_order(place: Place, name: str) -> None:
    client, path = place.owner, place.lists[name]
    whole = page_of(client, path, 200, None)
    assert whole["next_cursor"] is None and len(whole["items"]) >= COUNT
    assert all(not key.startswith("cursor_") for item in whole["items"] for key in item)
    for limit in (1, 3, COUNT):
        assert [{**item, "last_used_at": None} for item in walk(client, path, limit)] == [
            {**item, "last_used_at": None} for item in whole["items"]
        ]
    for key in {"started_at", "happened_at"} & set(whole["items"][0]):
        times = [item[key] for item in whole["items"]]
        assert name == "frontiers" or times == sorted(times, reverse=True)
    if name == "members":
        roles = ["owner", "admin", "member", "viewer"]
        assert [roles.index(item["role"]) for item in whole["items"]] == sorted(
            roles.index(item["role"]) for item in whole["items"]
        )
    if name == "teams":
        assert sorted(NAMES) == sorted(item["name"] for item in whole["items"] if item["name"] != "My team")
    if name == "projects":
        assert {item["name"] for item in whole["items"]} >= {f"{name} {i}" for i, name in enumerate(NAMES)}


@pytest.mark.parametrize("name", LISTS)
def test_what_is_no_cursor_is_refused(place: Place, name: str) -> None:
    for bad in ("limit=0", "limit=201", "limit=x", "cursor=", "cursor=x", "cursor=-1-x", "cursor=5", "cursor=1e3-x"):
        assert place.owner.get(f"{place.lists[name]}&{bad}").status == 400, bad
    many = "9" * 30
    assert place.owner.get(f"{place.lists[name]}&cursor={many}-x").status == 400
    answer = place.owner.get(f"{place.lists[name]}&cursor=0-%27%20OR%201%3D1%20--")
    assert answer.status in (200, 400)  # a name may be that


def test_what_is_added_meanwhile_moves_nothing(place: Place) -> None:
    first = page_of(place.owner, place.lists["runs"], 3, None)
    place.program.begin_run("later", project="later")
    second = page_of(place.owner, place.lists["runs"], 3, first["next_cursor"])
    seen = [item["id"] for item in first["items"] + second["items"]]
    assert len(set(seen)) == 6


def test_frontiers_are_listed_by_run(place: Place) -> None:
    listed = page_of(place.program, place.lists["frontiers"], 200, None)["items"]
    assert len(listed) == COUNT and {"id", "run", "state", "points"} <= set(listed[0])
    run = place.program.get("/api/v1/runs").json["items"][0]["id"]
    assert page_of(place.program, f"/api/v1/frontiers?run={run}", 200, None)["items"] == []


@pytest.mark.parametrize(
    ("path", "name", "row"),
    [("/projects?team={team}", "projects", r'<th scope="row">'), ("/teams/{team}?", "members", r'<th scope="row">'),
     ("/teams/{team}?", "invitations", ", expires "), ("/teams/{team}?", "audit", r'<tr><td class="time">'),
     ("/teams/{team}/tokens?", "tokens", r'<th scope="row">')],
)  # fmt: skip
def test_pages_without_a_script_lead_on(place: Place, path: str, name: str, row: str) -> None:
    link: str | None = path.format(team=place.team) + "&limit=3"
    rows = 0
    while link is not None:
        page = place.owner.get(link)
        assert page.status == 200, link
        rows += len(re.findall(row, page.text)) if name in ("invitations", "audit") else count_rows(page.text, name)
        found = re.search(rf'href="([^"]*[?&;]{name}=[^"]*)"', page.text)
        link = html.unescape(found[1]) + "&limit=3" if found is not None else None
    assert rows == len(walk(place.owner, place.lists[name], 200))
    assert place.owner.get(f"{path.format(team=place.team)}&{name}=x").status == 400


def count_rows(page: str, name: str) -> int:
    table = page.split(f'aria-label="{name.capitalize()}"')[1].split("</table>")[0]
    return table.count('<th scope="row">')
