"""The metrics' HTTP server withstands hostile clients."""

from __future__ import annotations

import contextlib
import http.client
import socket

import pytest
from time_limits import HANG_SECONDS, comes_true

from memscale.observability import metrics_http
from memscale.observability.metrics_http import MetricsServer


@pytest.fixture
def server():
    made = MetricsServer("127.0.0.1", 0, _answer)
    yield made
    made.end()


def _answer(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"numbers\n"]


def _ask(server: MetricsServer, host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=HANG_SECONDS)
    with contextlib.closing(connection):
        connection.putrequest(method, "/metrics", skip_host=host is not None)
        if host:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9", "10.1.2.3", "[::1]:80", "localhost:9000", socket.gethostname().upper()]
)
def test_addresses_and_own_names_are_answered(server, host):
    assert _ask(server, host) == (200, b"numbers\n")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9000", "127.0.0.1.evil.example", ""])
def test_other_names_are_not(server, host):
    status, text = _ask(server, host)
    assert status == 421 and b"numbers" not in text


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS"])
def test_only_get_is_answered(server, method):
    assert _ask(server, method=method)[0] == 405


def test_a_connection_that_says_nothing_is_closed(server, monkeypatch):
    monkeypatch.setattr(metrics_http._Handler, "timeout", 0.05)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=HANG_SECONDS) as idle:
        assert idle.recv(1) == b""


def test_more_connections_than_the_cap_are_closed_and_the_next_is_answered(server):
    with contextlib.ExitStack() as opened:
        held = [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=HANG_SECONDS))
            for _ in range(metrics_http._CONNECTIONS_MOST)
        ]
        assert comes_true(lambda: server._free._value == 0)
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=HANG_SECONDS) as late:
            assert late.recv(1) == b""
        assert len(held) == metrics_http._CONNECTIONS_MOST
    assert comes_true(lambda: server._free._value == metrics_http._CONNECTIONS_MOST)
    assert _ask(server)[0] == 200


def test_the_port_is_free_after_the_end():
    first = MetricsServer("127.0.0.1", 0, _answer)
    port = first.server_port
    first.end()
    MetricsServer("127.0.0.1", port, _answer).end()
