"""Accounts: the first link, invitations, sign-in and out, passwords, the end of an account."""

from __future__ import annotations

import concurrent.futures
import pathlib

from server_support import PASSWORD, Client, Server, first_team, invite, make_token, sign_up


def test_first_start_prints_a_link_that_makes_one_owner(data: pathlib.Path) -> None:
    server = Server(data)
    try:
        key = server.first_key()
        assert "first account" in Client(server).get(f"/welcome/{key}").text
        client = sign_up(server, key, "first")
        teams = client.get("/api/v1/teams").json["items"]
        assert [team["role"] for team in teams] == ["owner"]
        assert client.get("/metrics").status == 200  # an operator
        assert Client(server).get(f"/welcome/{key}").status == 404
        again = Client(server).form(f"/welcome/{key}", csrf="", name="x", email="x@example.com", password=PASSWORD)
        assert again.status == 404
    finally:
        server.stop()
    again = Server(data)
    assert again.stop() == 0
    assert "/welcome/" not in again._first_line


def test_a_restart_without_accounts_ends_the_older_link(data: pathlib.Path) -> None:
    first = Server(data)
    old = first.first_key()
    first.stop()
    second = Server(data)
    try:
        assert Client(second).get(f"/welcome/{old}").status == 404
        assert Client(second).get(f"/welcome/{second.first_key()}").status == 200
    finally:
        second.stop()


def test_sign_in_and_out(server: Server, join) -> None:
    email = join("viewer").get("/api/v1/account").json["account"]["email"]
    client = Client(server)
    answer = client.sign_in(email.upper())  # addresses are no passwords
    assert answer.status == 303
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
    assert client.get("/account").status == 200
    kept = client.cookie
    assert client.form("/sign-out").status == 303
    client.cookie = kept
    assert client.get("/account").status == 303  # the session itself has ended, not only the cookie
    assert client.get("/account").headers["location"] == "/sign-in"


def test_a_stranger_and_a_wrong_password_get_the_same_answer(server: Server, join) -> None:
    email = join("viewer").get("/api/v1/account").json["account"]["email"]
    wrong, unknown = Client(server).sign_in(email, "not the password"), Client(server).sign_in("nobody@example.com")
    assert wrong.status == unknown.status == 401
    assert wrong.text.replace(email, "") == unknown.text.replace("nobody@example.com", "")


def _processor_ns(server: Server) -> int:
    """What the server's threads have computed so far."""
    folders = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
    return sum(int((folder / "schedstat").read_text().split()[0]) for folder in folders)


def test_a_stranger_s_password_is_hashed_as_long_as_a_known_one_s(server: Server, join) -> None:
    email = join("viewer").get("/api/v1/account").json["account"]["email"]

    def cost(address: str) -> int:
        before = _processor_ns(server)
        assert Client(server).sign_in(address, "not the password").status == 401
        return _processor_ns(server) - before

    known, unknown = min(cost(email) for _ in range(3)), min(cost("nobody@example.com") for _ in range(3))
    assert 0.7 < unknown / known < 1.4  # a hash is nearly all of it


def test_more_passwords_than_can_be_hashed_are_refused_at_once(server: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor(160) as pool:
        answers = list(
            pool.map(lambda number: Client(server).sign_in(f"flood{number}@example.com", "x" * 20), range(160))
        )
    statuses = [answer.status for answer in answers]
    assert set(statuses) == {401, 503} and statuses.count(401) >= 64  # the places of the queue
    assert all("busy" in answer.text for answer in answers if answer.status == 503)
    assert Client(server).sign_in("nobody@example.com").status == 401


def test_signing_in_ends_the_session_that_came_along(server: Server, join) -> None:
    client = join("viewer")
    email = client.get("/api/v1/account").json["account"]["email"]
    before, csrf = client.cookie, client.csrf()
    assert client.form("/sign-in", csrf=csrf, email=email, password=PASSWORD).status == 303
    assert client.cookie != before
    fixed = Client(server)
    fixed.cookie = before
    assert fixed.get("/account").status == 303


def test_a_cookie_that_was_made_up_is_not_taken_over(server: Server, join) -> None:
    email = join("viewer").get("/api/v1/account").json["account"]["email"]
    client = Client(server)
    client.cookie = "ms_session=attackerknowsthis"
    assert client.form("/sign-in", csrf="", email=email, password=PASSWORD).status == 303
    assert client.cookie != "ms_session=attackerknowsthis"


def test_forms_need_their_token(join) -> None:
    client = join("viewer")
    assert client.form("/teams", csrf="", name="Mine").status == 403
    assert client.form("/teams", csrf="0" * 64, name="Mine").status == 403
    assert client.request("POST", "/api/v1/teams", '{"name": "M"}', {"Content-Type": "application/json"}).status == 403
    assert client.form("/teams", name="Mine").status == 303


def test_other_sites_send_nothing(server: Server, join) -> None:
    client = join("viewer")
    csrf = client.csrf()
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ):
        sent = {"Content-Type": "application/json", "X-CSRF-Token": csrf, **headers}
        assert client.request("POST", "/api/v1/teams", '{"name": "M"}', sent).status == 403
        form = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        answer = Client(server).request("POST", "/sign-in", "email=a%40b.c&password=x", form)
        assert answer.status == 403  # nobody is signed in as someone else


def test_a_new_password_ends_all_other_sessions(server: Server, join) -> None:
    client = join("viewer")
    email = client.get("/api/v1/account").json["account"]["email"]
    other = Client(server)
    assert other.sign_in(email).status == 303
    assert client.form("/account/password", password="wrong one", new_password="another password").status == 403
    assert client.form("/account/password", password=PASSWORD, new_password="short").status == 422
    assert client.form("/account/password", password=PASSWORD, new_password="another password").status == 303
    assert client.get("/account").status == 200
    assert other.get("/account").status == 303
    assert Client(server).sign_in(email).status == 401
    assert Client(server).sign_in(email, "another password").status == 303


def test_an_invitation_works_once_and_can_be_withdrawn(server: Server, owner: Client, team: str) -> None:
    used = invite(owner, team, "member")
    guest = sign_up(server, used, "guest")
    assert first_team(guest) == team
    assert Client(server).get(f"/welcome/{used}").status == 404
    withdrawn = invite(owner, team, "member")
    for item in owner.get(f"/api/v1/teams/{team}/invitations").json["items"]:
        assert owner.send("DELETE", f"/api/v1/teams/{team}/invitations/{item['id']}").status == 204
    assert Client(server).get(f"/welcome/{withdrawn}").status == 404


def test_someone_with_an_account_joins_as_who_they_are(owner: Client, team: str, stranger: Client) -> None:
    key = invite(owner, team, "viewer")
    assert stranger.form(f"/welcome/{key}").status == 303
    assert team in [item["id"] for item in stranger.get("/api/v1/teams").json["items"]]
    assert stranger.form(f"/teams/{team}/leave").status == 303
    assert team not in [item["id"] for item in stranger.get("/api/v1/teams").json["items"]]


def test_an_address_has_one_account(server: Server, owner: Client, team: str) -> None:
    key = invite(owner, team, "viewer")
    fields = {"name": "Again", "email": "OWNER@example.com", "password": PASSWORD}
    assert Client(server).form(f"/welcome/{key}", csrf="", **fields).status == 409
    assert Client(server).get(f"/welcome/{key}").status == 200  # and the link is not used up


def test_what_can_not_be_an_account_is_refused(server: Server, owner: Client, team: str) -> None:
    key = invite(owner, team, "viewer")
    good = {"name": "N", "email": "n@example.com", "password": PASSWORD}
    for bad in ({"name": ""}, {"name": "a\nb"}, {"email": "n"}, {"email": "a b@c.d"}, {"password": "short"}):
        answer = Client(server).form(f"/welcome/{key}", csrf="", **{**good, **bad})
        assert answer.status == 422, bad
        assert 'role="alert"' in answer.text


def test_everything_is_exported_and_deleted(server: Server, join, key) -> None:
    client = join("member")
    own = client.send("POST", "/api/v1/teams", {"name": "Alone"}).json["id"]
    program = Client(server, make_token(client, own, "runs:write", "runs:read"))
    run = program.begin_run(key(), name="mine")
    assert program.append(run, 1, [{"step": 1, "peak_bytes": 5}]).status == 200
    exported = client.get("/api/v1/account")
    assert exported.headers["content-disposition"] == "attachment"
    assert [item["id"] for item in exported.json["runs"]] == [run]
    assert exported.json["runs"][0]["steps"]["peak_bytes"] == [5]
    assert "password" not in exported.text and "hash" not in exported.text
    assert client.form("/account/delete", password="not the password").status == 403
    assert client.form("/account/delete", password=PASSWORD).status == 303
    assert client.cookie is None
    assert program.get(f"/api/v1/runs/{run}").status == 401  # the token went along
    assert Client(server).sign_in(exported.json["account"]["email"]).status == 401


def test_the_only_owner_of_a_team_with_others_can_not_go(server: Server, owner: Client, team: str, join) -> None:
    join("viewer")
    assert owner.form("/account/delete", password=PASSWORD).status == 409
    answer = owner.send("PUT", f"/api/v1/teams/{team}/members/{owner.account}", {"role": "member"})
    assert answer.status == 409
    assert owner.form(f"/teams/{team}/leave").status == 409
