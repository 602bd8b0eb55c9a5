"""Several servers on one PostgreSQL database, also behind nginx: none keeps to itself what another needs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import math
import pathlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from authenticator import pending_of, send_code, set_up
from databases import Postgres, free_port
from proxies import NAME, Named, Outside, Proxied, caddy, nginx, program_or_skip
from server_support import (
    PASSWORD,
    PATIENCE_S,
    ROOT,
    Client,
    Server,
    check_database,
    first_team,
    make_token,
    on_postgresql,
    sign_up,
    steps,
)

pytestmark = on_postgresql


@contextlib.contextmanager
def servers_on(data: pathlib.Path, count: int = 2) -> Iterator[list[Server]]:
    """Servers on one database."""
    servers = [Server(data, "--limits", "1000000") for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.stop()


@pytest.fixture
def pair(data: pathlib.Path) -> Iterator[list[Server]]:
    with servers_on(data) as servers:
        yield servers


def first_owner(servers: list[Server]) -> Client:
    """The last server's link is the one that counts; nobody cares where it is opened."""
    return sign_up(servers[0], servers[-1].first_key(), "owner")


def token_of(servers: list[Server], *scopes: str) -> str:
    owner = first_owner(servers)
    return make_token(owner, first_team(owner), *(scopes or ("runs:write", "runs:read")))


class Viewer:
    """A stream of a run's events."""

    def __init__(self, connection: http.client.HTTPConnection, token: str, run: str, host: str | None = None) -> None:
        self.connection = connection
        headers = {"Authorization": f"Bearer {token}"} | ({"Host": host} if host else {})
        connection.request("GET", f"/api/v1/runs/{run}/events", headers=headers)
        self.stream = connection.getresponse()
        assert self.stream.status == 200
        self.line()  # it has begun: whatever happens from now on is told

    def line(self) -> bytes:
        line = self.stream.fp.readline() if self.stream.chunked else self.stream.readline()
        assert line, "the stream has ended"
        return bytes(line)

    def event(self) -> dict:
        """The next event that has data."""
        while True:
            line = self.line()
            if line.startswith(b"data: "):
                return dict(json.loads(line[6:]))

    def close(self) -> None:
        self.connection.close()


def watch(server: Server, token: str, run: str) -> Viewer:
    return Viewer(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S), token, run)


# ---- one database ------------------------------------------------------------------


def test_servers_that_start_at_once_migrate_once(database: Postgres, data: pathlib.Path) -> None:
    database.database_of(data)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(lambda _: Server(data), range(4)))
    try:
        assert database.sql(data, "SELECT count(*), min(version) FROM schema_version") == "1|6"
        keys = [server.first_key() for server in servers]
        statuses = [Client(servers[0]).get(f"/welcome/{key}").status for key in keys]
        assert sorted(statuses) == [200, 404, 404, 404]
    finally:
        for server in servers:
            server.stop()


def test_a_code_is_accepted_by_one_of_two_servers(pair: list[Server]) -> None:
    """A sign-in may begin at one and end at the other; of two requests with the same code at once, one gets in."""
    authenticator, recovery = set_up(first_owner(pair))
    for code in (authenticator.code(), recovery[0]):
        waiting = [pending_of(Client(server).sign_in("owner@example.com")) for server in pair]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            sent = [pool.submit(send_code, Client(pair[1 - i]), waiting[i], code) for i in range(2)]
        assert sorted(answer.result().status for answer in sent) == [303, 401]


def test_what_one_server_stores_the_other_knows_at_once(pair: list[Server]) -> None:
    token = token_of(pair)
    programs = [Client(server, token) for server in pair]
    run = programs[0].begin_run("one")
    assert programs[1].begin_run("one") == run
    for sequence in range(1, 9):
        answer = programs[sequence % 2].append(run, sequence, steps(10 * sequence, 10))
        assert answer.json["last_sequence"] == sequence
        assert programs[1 - sequence % 2].get(f"/api/v1/runs/{run}").json["last_sequence"] == sequence
    person = Client(pair[0])
    assert person.sign_in("owner@example.com").status == 303
    elsewhere = Client(pair[1])
    elsewhere.cookie = person.cookie
    assert elsewhere.get("/account").status == 200
    assert elsewhere.form("/sign-out").status == 303  # its form token is right there too
    assert person.get("/account").status == 303


def test_what_both_servers_write_at_once_is_counted_once(pair: list[Server]) -> None:
    """The same batches to both, and rows of audit from both: one order, no gap, nothing twice."""
    owner = first_owner(pair)
    team = first_team(owner)
    token = make_token(owner, team, "runs:write", "runs:read")
    run = Client(pair[0], token).begin_run("one")
    counted = [0, 0]
    together = threading.Barrier(2)

    def write(which: int) -> None:
        person = Client(pair[which])
        assert person.sign_in("owner@example.com").status == 303
        program = Client(pair[which], token)
        for sequence in range(1, 31):
            together.wait(PATIENCE_S)
            answer = program.append(run, sequence, steps(10 * sequence, 10))
            assert answer.status == 200, answer.text
            counted[which] += answer.json["counted"]
            made = program.send("POST", "/api/v1/runs", {"model": "M"}, **{"Idempotency-Key": f"key{sequence}"})
            assert made.status in (200, 201)
            if sequence % 3 == 0:
                make_token(person, team, "runs:read")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (0, 1)))
    assert sum(counted) == 30
    program = Client(pair[0], token)
    assert program.get(f"/api/v1/runs/{run}").json["step_count"] == 300
    assert len(program.get("/api/v1/runs?limit=200").json["items"]) == 31
    assert len(owner.get(f"/api/v1/teams/{team}/tokens").json["items"]) == 21
    check_database(pair[0].data)


def has_worker(server: Server) -> bool:
    """Whether the server makes a frontier now: in a process of its own."""
    children = pathlib.Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return any(path.read_text().split() for path in children)


def test_frontiers_outlive_the_server_that_makes_them(pair: list[Server]) -> None:
    token = token_of(pair, "runs:read")
    data = ROOT / "tests/cli/data"
    asked = {
        "graph": json.loads((data / "graph_small.json").read_text()),
        "hardware": json.loads((data / "hardware_disk.json").read_text()), "points": 25,
    }  # fmt: skip
    jobs = [Client(pair[1], token).send("POST", "/api/v1/frontiers", asked).json["id"] for _ in range(4)]
    leaders: list[Server] = []
    deadline = time.monotonic() + PATIENCE_S
    while not leaders and time.monotonic() < deadline:
        leaders = [server for server in pair if has_worker(server)]
    assert len(leaders) == 1  # never both
    leaders[0].stop(signal.SIGKILL)
    other = Client(pair[1 - pair.index(leaders[0])], token)
    for job in jobs:
        shown = other.get(f"/api/v1/frontiers/{job}").json
        while shown["state"] != "done" and time.monotonic() < deadline:
            assert shown["state"] in ("queued", "running"), shown
            time.sleep(0.02)
            shown = other.get(f"/api/v1/frontiers/{job}").json
        assert shown["points_done"] == 25


# ---- live updates -----------------------------------------------------------------------


def test_viewers_everywhere_see_all_events_in_their_order(pair: list[Server]) -> None:
    token = token_of(pair)
    programs = [Client(server, token) for server in pair]
    run, other = programs[0].begin_run("one"), programs[0].begin_run("other")
    viewers = [watch(server, token, run) for server in pair]
    for sequence in range(1, 11):
        programs[sequence % 2].append(run, sequence, steps(5 * sequence, 5))
        programs[sequence % 2].append(other, sequence, steps(5 * sequence, 5))
    programs[1].append(run, 11, steps(1000, 1000))  # too many points for a notification
    programs[0].append(run, 11, steps(1000, 1000))  # counted before: nothing is told
    programs[0].send("POST", f"/api/v1/runs/{run}/finish", {"outcome": "finished"})
    for viewer in viewers:
        for sequence in range(1, 11):
            event = viewer.event()
            assert event["sequence"] == sequence
            assert event["columns"]["step"] == list(range(5 * sequence, 5 * sequence + 5))
        assert "columns" not in viewer.event()
        assert viewer.event() == {"finished": True}
        viewer.close()


def test_what_is_refused_is_told_to_nobody(pair: list[Server]) -> None:
    token = token_of(pair)
    programs = [Client(server, token) for server in pair]
    run = programs[0].begin_run("one")
    viewer = watch(pair[1], token, run)
    assert programs[0].append(run, 3, steps(1, 5)).status == 409
    assert programs[0].append(run, 1, steps(1, 5)).status == 200
    assert viewer.event()["sequence"] == 1
    viewer.close()


# ---- behind nginx -----------------------------------------------------------------------


class Behind:
    """Two servers behind a proxy, which asks one after the other."""

    def __init__(self, servers: list[Proxied], port: int) -> None:
        self.servers = servers
        self.port = port
        self.clients: list[Outside] = []

    def client(self, token: str | None = None, address: str = "127.0.0.1") -> Outside:
        client = Outside(self, token)  # type: ignore[arg-type]
        client.address = address
        self.clients.append(client)
        return client

    def shares(self) -> list[int]:
        """Requests that each server has got."""
        return [len([line for line in server.log() if "request" in line]) for server in self.servers]


@contextlib.contextmanager
def behind_proxy(data: pathlib.Path, folder: pathlib.Path, percent: int, proxy: Any = nginx) -> Iterator[Behind]:
    program_or_skip(proxy.__name__)
    servers = [Proxied(data, percent) for _ in range(2)]
    port = free_port()
    try:
        with proxy(folder, [server.own_port for server in servers], port):
            behind = Behind(servers, port)
            yield behind
            for client in behind.clients:  # a proxy that ends waits for open connections
                client.close()
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.stop()


def owner_behind(behind: Behind) -> Outside:
    owner = behind.client()
    key = [server.first_key() for server in behind.servers][-1]
    form = {"csrf": "", "name": "owner", "email": "owner@example.com", "password": PASSWORD}
    assert owner.form(f"/welcome/{key}", **form).status == 303
    return owner


@pytest.mark.parametrize("proxy", [nginx, caddy])
def test_live_updates_come_through_a_proxy(data: pathlib.Path, tmp_path: pathlib.Path, proxy: Any) -> None:
    with behind_proxy(data, tmp_path, 1000000, proxy) as behind:
        owner = owner_behind(behind)
        token = make_token(owner, first_team(owner), "runs:write", "runs:read")
        program = behind.client(token)
        run = program.begin_run("one")
        viewers = [Viewer(Named("127.0.0.1", behind.port, timeout=PATIENCE_S), token, run, NAME) for _ in range(4)]
        for sequence in range(1, 9):
            assert program.append(run, sequence, steps(5 * sequence, 5)).status == 200
        assert program.send("POST", f"/api/v1/runs/{run}/finish", {"outcome": "finished"}).status == 204
        for viewer in viewers:
            assert [viewer.event()["sequence"] for _ in range(8)] == list(range(1, 9))
            assert viewer.event() == {"finished": True}
            viewer.close()
        assert all(share > 0 for share in behind.shares())  # Caddy chooses at random


def test_guesses_are_counted_together(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """As with one server: one guess a minute for each address, and nobody else is locked out."""
    with behind_proxy(data, tmp_path, 10) as behind:
        owner_behind(behind)

        def guess(address: str, password: str) -> int:
            answer = behind.client(address=address).sign_in("owner@example.com", password)
            if answer.status == 429:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
            return answer.status

        assert [guess("127.0.0.21", "wrong") for _ in range(3)] == [401, 429, 429]
        assert guess("127.0.0.21", PASSWORD) == 429  # even the right one, from there
        assert guess("127.0.0.22", PASSWORD) == 303  # the owner is not locked out
        assert all(share > 1 for share in behind.shares())


def test_requests_of_a_token_are_counted_together(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A burst of 12, then one a second: as with one server, and not as with two."""
    with behind_proxy(data, tmp_path, 10) as behind:
        owner = owner_behind(behind)
        program = behind.client(make_token(owner, first_team(owner), "runs:read"), "127.0.0.23")
        begun = time.monotonic()
        answers = [program.get("/api/v1/projects") for _ in range(60)]
        passed = [answer.status for answer in answers].count(200)
        assert {answer.status for answer in answers} == {200, 429}
        assert 12 <= passed <= 12 + math.ceil(time.monotonic() - begun) + 1
        assert answers[-1].headers["content-type"] == "application/problem+json"
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert all(share > 20 for share in behind.shares())


def test_a_server_that_dies_is_made_up_for_by_the_other(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """nginx asks the other one; nothing that was acknowledged is missing there."""
    with behind_proxy(data, tmp_path, 1000000) as behind:
        owner = owner_behind(behind)
        program = behind.client(make_token(owner, first_team(owner), "runs:write", "runs:read"))
        run = program.begin_run("one")
        sequence = 0
        for round_trip in range(40):
            if round_trip == 20:
                behind.servers[0].stop(signal.SIGKILL)
            answer = program.append(run, sequence + 1, steps(10 * (sequence + 1), 10))
            if answer.status == 200:
                sequence = answer.json["last_sequence"]
            else:
                assert answer.status == 502  # it died in the middle of this one; the client sends it again
        shown = program.get(f"/api/v1/runs/{run}").json
        assert shown["last_sequence"] == sequence >= 38 and shown["step_count"] == 10 * sequence
