"""Where a request came from: proxies and Cloudflare are believed if the operator named them, nobody else is."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Iterator

import pytest
from server_support import AS_USER, PATIENCE_S, Client, Server, on_sqlite, run_program

CLIENT, CLOUDFLARE = "203.0.113.7", "198.51.100.9"


@pytest.fixture(scope="module")
def behind(database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Behind two kinds of proxies; loopback's other addresses stand for everyone's."""
    folder = tmp_path_factory.mktemp("behind")
    ranges = folder / "cloudflare"
    ranges.write_text("# of the provider\n198.51.100.0/24\n127.0.0.4\n2001:db8::/32\n")
    proxies = ["--trust-proxy", "127.0.0.2", "--trust-proxy", "127.0.1.0/24"]
    server = Server(folder / "data", "--limits", "1000000", *proxies, "--trust-cloudflare", str(ranges))
    yield server
    server.stop()
    database.forget(folder / "data")


def address_of(server: Server, source: str, *lines: str) -> str:
    """The address that the log has for a request from `source` with these headers."""
    server.wait_for_log(Client(server).get("/api/v1/nothing").json["instance"])  # all earlier lines are read
    before = len(server.log())
    head = "\r\n".join(["GET /nothing HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", ""])
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S, source_address=(source, 0)) as connection:
        connection.sendall(head.encode())
        while connection.recv(65536):
            pass
    while not (found := [line for line in server.log()[before:] if line.get("status") == 404]):
        pass
    assert len(found) == 1
    return found[0]["address"]


@pytest.mark.parametrize(
    "source, forwarded, cloudflare, wanted",
    [
        ("127.0.0.2", CLIENT, None, CLIENT),
        ("127.0.1.77", CLIENT, None, CLIENT),  # in a range
        ("127.0.0.2", f"6.6.6.6, {CLIENT}", None, CLIENT),  # what stands before is a claim
        ("127.0.0.2", f"6.6.6.6, {CLIENT}, 127.0.1.3", None, CLIENT),  # through two proxies
        ("127.0.0.2", f"{CLIENT}, nonsense", None, "127.0.0.2"),
        ("127.0.0.2", None, None, "127.0.0.2"),
        ("127.0.0.3", CLIENT, None, "127.0.0.3"),  # a stranger lies
        ("127.0.0.3", "127.0.0.2", CLIENT, "127.0.0.3"),
        ("127.0.0.3", CLOUDFLARE, CLIENT, "127.0.0.3"),
        ("127.0.2.1", CLIENT, None, "127.0.2.1"),  # beside the range
        ("127.0.0.4", None, CLIENT, CLIENT),  # from Cloudflare to us
        ("127.0.0.4", None, "2001:DB8:7::1", "2001:db8:7::1"),
        ("127.0.0.4", CLIENT, None, "127.0.0.4"),  # which isn't one of the proxies
        ("127.0.0.4", None, "nonsense", "127.0.0.4"),
        ("127.0.0.4", None, f"{CLIENT}, 6.6.6.6", "127.0.0.4"),
        ("127.0.0.2", CLOUDFLARE, CLIENT, CLIENT),  # from Cloudflare through a proxy to us
        ("127.0.0.2", "2001:db8::1", CLIENT, CLIENT),
        ("127.0.0.2", CLIENT, "6.6.6.6", CLIENT),  # past Cloudflare, with its header
        ("127.0.0.2", f"{CLOUDFLARE}, {CLIENT}", "6.6.6.6", CLIENT),
        ("127.0.0.2", None, CLIENT, "127.0.0.2"),
    ],
)
def test_only_those_are_believed_that_the_operator_named(
    behind: Server, source: str, forwarded: str | None, cloudflare: str | None, wanted: str
) -> None:
    lines = [f"X-Forwarded-For: {forwarded}"] if forwarded is not None else []
    lines += [f"CF-Connecting-IP: {cloudflare}"] if cloudflare is not None else []
    assert address_of(behind, source, *lines) == wanted


def test_a_header_that_is_there_twice_is_not_believed(behind: Server) -> None:
    twice = [f"X-Forwarded-For: {CLIENT}", "X-Forwarded-For: 6.6.6.6"]
    assert address_of(behind, "127.0.0.2", *twice) == "127.0.0.2"
    twice = [f"CF-Connecting-IP: {CLIENT}", "CF-Connecting-IP: 6.6.6.6"]
    assert address_of(behind, "127.0.0.4", *twice) == "127.0.0.4"


def test_cloudflare_is_not_believed_unless_it_is_named(server: Server) -> None:
    assert address_of(server, "127.0.0.4", f"CF-Connecting-IP: {CLIENT}") == "127.0.0.4"


@on_sqlite
def test_a_range_that_is_none_is_told_by_one_line(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ranges = tmp_path / "ranges"
    for option, value, text, told in (
        ("--trust-proxy", "0.0.0.0/0", None, "needs 1 to 32 bits"),
        ("--trust-proxy", "10.0.0.1/8", None, "bits behind the prefix"),
        ("--trust-proxy", "proxy.example", None, "no address"),
        ("--trust-cloudflare", str(ranges), "10.0.0.0/8\n\n::/0\n", "line 3"),
        ("--trust-cloudflare", str(ranges), "", "no range"),
        ("--trust-cloudflare", str(tmp_path / "none"), None, "none"),
    ):
        if text is not None:
            ranges.write_text(text)
        ran = run_program("--data", data, "--port", "0", *AS_USER, option, value)
        assert ran.returncode == 2 and told in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr
    assert not data.exists()
