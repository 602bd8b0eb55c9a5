"""Clients that hold connections: slow heads and bodies, many connections, connections that never end.

Each gets its 408 or is refused, has one line in the log, and others are served meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import select
import shutil
import socket
import time

import pytest
from server_support import PATIENCE_S, Client, Server

CONNECTIONS_OF_ONE = 256
REQUESTS_MOST = 1000
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(server: Server, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE_S, source_address=(source, 0))


class Slow:
    """A client that sends `first` at once, then a byte of `rest` a second, until the server ends the connection."""

    def __init__(self, server: Server, first: bytes, rest: bytes) -> None:
        self.connection = connect(server)
        self.connection.sendall(first)
        self.rest = rest
        self.answer = b""
        self.is_open = True
        self.began = time.monotonic()
        self.took_s = 0.0

    def go_on(self) -> None:
        """Sends a byte, if the connection is open, and takes what has come."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while select.select([self.connection], [], [], 0)[0]:
                part = self.connection.recv(65536)
                self.answer += part
                if not part:
                    self.is_open, self.took_s = False, time.monotonic() - self.began
                    self.connection.close()
                    return
            if self.rest:
                self.connection.sendall(self.rest[:1])
                self.rest = self.rest[1:]
            return
        self.is_open, self.took_s = False, time.monotonic() - self.began


def problem_of(answer: bytes) -> dict[str, object]:
    """The document of a 408 that is all of the answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"Content-Type: application/problem+json" in head, answer
    assert f"Content-Length: {len(body)}".encode() in head and b"Connection: close" in head
    problem = json.loads(body)
    assert problem["status"] == 408 and problem["title"] and problem["detail"]
    return problem


def requests_of(server: Server) -> list[dict[str, object]]:
    """The log's lines of requests."""
    return [line for line in server.log() if "status" in line]


@pytest.fixture
def own(data) -> Server:
    """A server whose log is this test's alone."""
    started = Server(data, "--limits", "1000000")
    yield started
    started.stop()


def test_slow_requests_end_with_408_and_one_line(own: Server) -> None:
    """A byte a second keeps every connection from being idle; none holds it longer than its time."""
    dripped = b"x" * 200
    body = b"POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\n"
    body += b"Content-Type: application/json\r\nContent-Length: 900\r\n\r\n"
    slow = {
        "first line": Slow(own, b"GET /", dripped),
        "header": Slow(own, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", dripped),
        "body": Slow(own, body, dripped),
        "second head": Slow(own, HEALTH, b"GET /" + dripped),
        "nothing": Slow(own, b"", b""),
        "nothing more": Slow(own, HEALTH, b""),
    }
    health = Client(own)
    while any(client.is_open for client in slow.values()):
        assert all(time.monotonic() - client.began < PATIENCE_S for client in slow.values() if client.is_open)
        for client in slow.values():
            if client.is_open:
                client.go_on()
        assert health.get("/healthz").status == 200
        time.sleep(1)
    assert slow["nothing"].answer == b""
    ok, _, late = slow["second head"].answer.partition(b"ok\n")
    assert ok.startswith(b"HTTP/1.1 200 ") and slow["nothing more"].answer.endswith(b"ok\n")
    problems = {name: problem_of(slow[name].answer) for name in ("first line", "header", "body")}
    problems["second head"] = problem_of(late)
    assert min(slow[name].took_s for name in problems) > 15  # nobody is hurried
    deadline = time.monotonic() + PATIENCE_S
    while len(lines := [line for line in requests_of(own) if line["status"] != 200]) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    lines = [line for line in requests_of(own) if line["status"] != 200]
    assert [line["status"] for line in lines] == [408] * 4, lines
    assert all(line["address"] == "127.0.0.1" for line in lines if line.get("route") != "/api/v1/telemetry")
    numbers = [line["request"] for line in lines]
    for name in ("header", "body"):
        assert numbers.count(problems[name]["instance"]) == 1


def answers(connection: socket.socket) -> bool:
    """Whether a request is answered on it; a refused connection is closed."""
    try:
        connection.sendall(HEALTH)
        return connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False


def test_one_address_has_no_more_connections_than_it_may(own: Server) -> None:
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(connect(own, "127.0.0.2")) for _ in range(CONNECTIONS_OF_ONE + 40)]
        served = [connection for connection in many if answers(connection)]
        assert CONNECTIONS_OF_ONE <= len(served) <= CONNECTIONS_OF_ONE + 4  # two threads accept at once
        assert answers(stack.enter_context(connect(own, "127.0.0.1")))  # another address
        told = [line for line in own.log() if "connections are refused" in line.get("message", "")]
        assert len(told) == 1 and "127.0.0.2" in told[0]["message"]
        for connection in served[:20]:
            connection.close()
        deadline = time.monotonic() + PATIENCE_S
        while not answers(stack.enter_context(connect(own, "127.0.0.2"))):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("option", ["--trust-proxy", "--trust-cloudflare"])
def test_a_trusted_proxy_has_as_many_as_it_needs(data, tmp_path: pathlib.Path, option: str) -> None:
    ranges = tmp_path / "ranges"
    ranges.write_text("127.0.0.2\n")
    server = Server(data, "--limits", "1000000", option, "127.0.0.2" if option == "--trust-proxy" else str(ranges))
    try:
        with contextlib.ExitStack() as stack:
            many = [stack.enter_context(connect(server, "127.0.0.2")) for _ in range(CONNECTIONS_OF_ONE + 40)]
            assert all(answers(connection) for connection in many)
    finally:
        server.stop()


class WithFewFiles(Server):
    """A server that may have few files open, so that its connections run out."""

    def command(self, data: pathlib.Path, options: tuple[str, ...]) -> list[str]:
        return ["prlimit", "--nofile=120:120", *super().command(data, options)]


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
def test_a_server_without_room_for_connections_serves_those_it_has(data) -> None:
    """More wait until one of them ends."""
    server = WithFewFiles(data, "--limits", "1000000", "--trust-proxy", "127.0.0.1")
    try:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(connect(server))
            assert answers(first)
            many = [stack.enter_context(connect(server)) for _ in range(200)]
            for connection in many:
                connection.sendall(HEALTH)
            time.sleep(1)
            served = [connection for connection in many if select.select([connection], [], [], 0)[0]]
            assert 10 <= len(served) < 120  # some wait
            assert answers(first)
            first.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert first.recv(65536).startswith(b"HTTP/1.1 200 ")
            for connection in served:
                connection.close()
            waiting = next(connection for connection in many if connection not in served)
            waiting.settimeout(PATIENCE_S)
            assert waiting.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert Client(server).get("/healthz").status == 200
    finally:
        server.stop()


def test_a_connection_ends_after_many_requests(own: Server) -> None:
    with connect(own) as connection:
        received = b""
        connection.sendall(HEALTH * (REQUESTS_MOST + 5))
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                received += part
    answered = re.findall(rb"HTTP/1.1 (\d+)", received)
    assert answered == [b"200"] * REQUESTS_MOST
    assert received.count(b"Connection: close") == 1


def test_what_is_no_request_has_one_line(own: Server) -> None:
    """TLS, another protocol, half a line: from an address that the log names."""
    for number, text in enumerate(
        (b"\x16\x03\x01\x02\x00\x01\x00" + b"\x00" * 100, b"SSH-2.0-x\r\n\r\n", b"GET /heal"), 1
    ):
        with connect(own) as connection:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(65536):
                    pass
        deadline = time.monotonic() + PATIENCE_S
        while len(requests_of(own)) < number:
            assert time.monotonic() < deadline, (text, own.log_lines)
            time.sleep(0.02)
        time.sleep(0.2)
        assert len(requests_of(own)) == number, (text, own.log_lines)
        assert requests_of(own)[-1]["address"] == "127.0.0.1" and int(requests_of(own)[-1]["status"]) >= 400
    connect(own).close()  # somebody only looks whether the port is open
    time.sleep(0.5)
    assert len(requests_of(own)) == 3
