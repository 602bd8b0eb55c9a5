"""What comes over the wire: malformed, oversized, duplicated, from elsewhere.

The right status, one problem document, one line in the log, nothing changed.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import time

import pytest
from server_support import AS_USER, PASSWORD, PATIENCE_S, PROGRAM, Client, Server, on_sqlite, steps

PROBLEM = "application/problem+json"


def raw(server: Server, text: str | bytes, is_whole: bool = True) -> bytes:
    """What the server answers to these bytes, until it closes the connection; `is_whole` False: nothing more comes."""
    data = text.encode() if isinstance(text, str) else text
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        parts = []
        with contextlib.suppress(OSError):  # it may be closed already, as for a head that is too large
            connection.sendall(data)
            if not is_whole:
                connection.shutdown(socket.SHUT_WR)
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def head(method: str, path: str, *lines: str, host: str = "127.0.0.1") -> str:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *lines, "", ""])


REFUSED = [
    ("an unknown page", "GET", "/nothing", None, {}, 404),
    ("an unknown object", "GET", "/api/v1/nothing", None, {}, 404),
    ("another method", "DELETE", "/api/v1/runs", None, {}, 405),
    ("a method of nobody", "BREW", "/api/v1/runs", None, {}, 405),
    ("an escaped path", "GET", "/api/v1/%72uns", None, {}, 404),
    ("an escaped slash", "GET", "/api%2fv1/runs", None, {}, 404),
    ("a NUL", "GET", "/healthz%00", None, {}, 404),
    ("dots", "GET", "/assets/../healthz", None, {}, 404),
    ("two slashes", "GET", "//healthz", None, {}, 404),
    ("a long path", "GET", "/" + "a" * 300, None, {}, 404),
    ("a template as a file", "GET", "/assets/layout.html", None, {}, 404),
    ("a malformed query", "GET", "/api/v1/runs?limit=%zz", None, {}, 400),
    ("a query that is no UTF-8", "GET", "/api/v1/runs?project=%ff%fe", None, {}, 400),
    ("a field twice", "GET", "/api/v1/runs?limit=null&limit=null", None, {}, 400),
    ("forty fields", "GET", "/api/v1/runs?" + "&".join(f"a{i}=1" for i in range(40)), None, {}, 400),
    ("a body where none is taken", "GET", "/api/v1/runs", b"x", {}, 413),
    ("another media type", "POST", "/api/v1/runs", b"{}", {"Content-Type": "text/plain"}, 415),
    ("no media type", "POST", "/api/v1/runs", b"{}", {}, 415),
    ("a form for JSON", "POST", "/api/v1/runs", b"a=1", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ("no JSON", "POST", "/api/v1/runs", b"{", {"Content-Type": "application/json"}, 400),
    ("a list", "POST", "/api/v1/runs", b"[]", {"Content-Type": "application/json"}, 400),
    ("a member twice", "POST", "/api/v1/runs", b'{"a":1,"a":2}', {"Content-Type": "application/json"}, 400),
    ("deep JSON", "POST", "/api/v1/runs", b'{"a":' + b"[" * 5000, {"Content-Type": "application/json"}, 400),
    ("no UTF-8", "POST", "/api/v1/runs", b'{"a":"\xff"}', {"Content-Type": "application/json"}, 400),
    ("a long body", "POST", "/api/v1/telemetry", b" " * 9000, {"Content-Type": "application/json"}, 413),
    ("a member of ours", "POST", "/api/v1/runs", b'{"model":"M","x":1}',
     {"Content-Type": "application/json", "Idempotency-Key": "a"}, 422),
    ("no member", "POST", "/api/v1/runs", b"{}", {"Content-Type": "application/json", "Idempotency-Key": "a"}, 422),
    ("an empty name", "POST", "/api/v1/runs", b'{"model":""}',
     {"Content-Type": "application/json", "Idempotency-Key": "a"}, 422),
    ("a name with a line feed", "POST", "/api/v1/runs", b'{"model":"a\\nb"}',
     {"Content-Type": "application/json", "Idempotency-Key": "a"}, 422),
]  # fmt: skip


@pytest.mark.parametrize("what, method, path, body, headers, status", REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(server: Server, program: Client, what, method, path, body, headers, status) -> None:
    del what
    before = program.get("/api/v1/runs?limit=1").json
    answer = program.request(method, path, body, headers)
    assert answer.status == status
    assert program.get("/api/v1/runs?limit=1").json == before
    if path.startswith("/api/v1/"):
        assert answer.headers["content-type"] == PROBLEM
        problem = answer.json
        assert problem["status"] == status and problem["title"] and problem["detail"]
        assert server.wait_for_log(problem["instance"])["status"] == status


def test_a_wrong_method_is_told_the_right_ones(program: Client) -> None:
    for path, allowed in (
        ("/api/v1/runs", "POST, GET, HEAD"), ("/healthz", "GET, HEAD"), ("/sign-out", "POST"),
        ("/api/v1/teams/t/members/a", "PUT, DELETE"),
    ):  # fmt: skip
        answer = program.request("PATCH", path)
        assert (answer.status, answer.headers["allow"]) == (405, allowed), path
        assert "allow" not in program.get("/api/v1/runs").headers


def test_tokens_that_are_none_are_refused(server: Server, team: str) -> None:
    for token in ("", "ms_", "ms_" + "0" * 52, "x" * 500, "ms_\u00e9"):
        client = Client(server, token.encode("latin-1").decode("latin-1"))
        assert client.get("/api/v1/runs").status in (401, 400), token
    assert Client(server).get("/api/v1/runs", Authorization="Basic YTpi").status == 401


def test_only_our_host_is_answered(server: Server) -> None:
    for host, status in (
        ("127.0.0.1", 200), (f"127.0.0.1:{server.port}", 200), ("localhost", 200), ("LOCALHOST:1", 200),
        ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421), ("localhost@evil.example", 421),
    ):  # fmt: skip
        assert status_of(raw(server, head("GET", "/healthz", host=host))) == status, host
    assert status_of(raw(server, "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")) in (400, 421)


def told_once(server: Server, text: str | bytes, is_whole: bool = True) -> bytes:
    """What the server answers to one request, which has one line in the log with the answer's status."""

    def lines() -> list[dict]:
        return [line for line in server.log() if "status" in line]

    server.wait_for_log(Client(server).get("/api/v1/nothing").json["instance"])  # all earlier lines are read
    before = len(lines())
    answer = raw(server, text, is_whole)
    deadline = time.monotonic() + PATIENCE_S
    while len(lines()) == before:
        assert time.monotonic() < deadline, answer
        time.sleep(0.01)
    time.sleep(0.1)
    (line,) = lines()[before:]
    if answer and line.get("reason") != "no request of HTTP":
        assert line["status"] == status_of(answer), (line, answer)
    return answer


def assert_problem(answer: bytes, status: int) -> None:
    """One document that says what was wrong."""
    head_, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(answer) == status and b"Content-Type: application/problem+json" in head_, answer
    problem = json.loads(body)
    assert problem["status"] == status and problem["title"] and problem["detail"] and problem["instance"]


POST = ("POST", "/api/v1/telemetry", "Content-Type: application/json")
HEADER_TRICKS = [
    ("chunks", POST, ["Transfer-Encoding: chunked"], 411),
    ("chunks in capitals", POST, ["Transfer-Encoding: CHUNKED"], 411),
    ("two lengths", POST, ["Content-Length: 2", "Content-Length: 3"], 411),
    ("the same length twice", POST, ["Content-Length: 2", "Content-Length: 2"], 411),
    ("two media types", ("POST", "/api/v1/telemetry"),
     ["Content-Type: application/json", "Content-Type: text/plain", "Content-Length: 2"], 415),
    ("a long key", ("POST", "/api/v1/runs"),
     ["Content-Type: application/json", "Content-Length: 2", "Idempotency-Key: " + "k" * 66], 400),
    ("two keys", ("POST", "/api/v1/runs"),
     ["Content-Type: application/json", "Content-Length: 2", "Idempotency-Key: a", "Idempotency-Key: b"], 400),
    ("two tokens", ("GET", "/api/v1/runs"), ["Authorization: Bearer a", "Authorization: Bearer a"], 400),
    ("a long token", ("GET", "/api/v1/runs"), ["Authorization: Bearer " + "a" * 200], 400),
    ("two cookies' headers", ("GET", "/api/v1/runs"), ["Cookie: a=b", "Cookie: c=d"], 400),
    ("two hosts", ("GET", "/api/v1/runs"), ["Host: localhost"], 421),
    ("another method by a header", ("GET", "/api/v1/runs"), ["X-HTTP-Method-Override: DELETE"], 401),
    ("another path by a header", ("GET", "/api/v1/nothing"), ["X-Original-URL: /healthz"], 404),
    ("another protocol", ("GET", "/api/v1/nothing"), ["Upgrade: websocket", "Sec-WebSocket-Key: a"], 404),
]  # fmt: skip


@pytest.mark.parametrize("what, request_, lines, status", HEADER_TRICKS, ids=[row[0] for row in HEADER_TRICKS])
def test_header_tricks_get_a_problem_document_and_one_line(server: Server, what, request_, lines, status) -> None:
    del what
    is_get = request_[0] == "GET"
    assert_problem(told_once(server, head(*request_, *lines) + ("" if is_get else "{}"), is_get), status)


def test_header_tricks_that_the_http_library_refuses_have_one_line(server: Server) -> None:
    """libmicrohttpd answers itself, before anything of ours is asked."""
    for text, statuses in (
        (head(*POST, "Transfer-Encoding: chunked", "Content-Length: 2") + "{}", {400, 411}),
        (head(*POST, "Content-Length: 99999999999999999999999") + "{}", {400, 413}),
        (head(*POST, "Content-Length: -1") + "{}", {400}),
        (head(*POST, "Content-Length: 0x2") + "{}", {400}),
        (head(*POST, "Content-Length: +2") + "{}", {400}),
        (head(*POST, "Content-Length: 2, 2") + "{}", {400}),
        (head("GET", "/healthz", "X: " + "a" * 60000), {0, 400, 413, 431}),
        ("GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", {400, 421}),
        ("GET /healthz HTTP/3.0\r\nHost: localhost\r\n\r\n", {505}),
        ("GET /healthz HTTP/1.1 x\r\nHost: localhost\r\n\r\n", {0, 400}),
        ("\x00\x01\x02\x03 / HTTP/1.1\r\nHost: localhost\r\n\r\n", {0, 400, 405}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100, {0, 400, 408}),
    ):
        assert status_of(told_once(server, text, False)) in statuses, text[:80]


def test_one_token_is_taken(server: Server, program: Client) -> None:
    once = f"Authorization: Bearer {program.token}"
    assert status_of(told_once(server, head("GET", "/api/v1/runs", once))) == 200
    assert status_of(told_once(server, head("GET", "/api/v1/runs", once, once))) == 400


def test_no_other_site_may_read_answers(server: Server, owner: Client, program: Client) -> None:
    """Before such a request a browser asks for leave, and gets none."""
    origin = "Origin: https://evil.example"
    for path, method in (("/api/v1/runs", "POST"), ("/api/v1/runs", "GET"), ("/account", "POST"), ("/healthz", "GET")):
        asks = [origin, f"Access-Control-Request-Method: {method}", "Access-Control-Request-Headers: authorization"]
        answer = told_once(server, head("OPTIONS", path, *asks))
        assert status_of(answer) == 405 and b"\r\nAllow: " in answer, answer
        assert b"access-control-" not in answer.lower()
    assert_problem(told_once(server, head("OPTIONS", "*", origin)), 404)
    for client, path in ((program, "/api/v1/runs"), (owner, "/runs"), (Client(server), "/healthz")):
        answer = client.get(path, Origin="https://evil.example")
        assert answer.status == 200 and not any(name.startswith("access-control-") for name in answer.headers)


def test_requests_in_a_row_are_answered_in_turn(server: Server) -> None:
    first = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answers = raw(server, first + first + head("GET", "/nothing", host="localhost"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", b"404"]


def test_nobody_waits_for_a_body_that_does_not_come(server: Server) -> None:
    """It gets its 408, the connection is closed whatever the client still sends, and others are served meanwhile."""
    slow = head("POST", "/api/v1/telemetry", "Content-Type: application/json", "Content-Length: 1000")
    answer, began = b"", time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=90) as connection:
        connection.sendall((slow + "{").encode())
        assert Client(server).get("/healthz").status == 200
        connection.settimeout(1)
        is_open = True
        while is_open:
            assert time.monotonic() - began < 80, "the body is still waited for"
            with contextlib.suppress(TimeoutError):
                try:
                    connection.sendall(b" ")  # keeps the connection from being idle
                    part = connection.recv(1000)
                    answer, is_open = answer + part, part != b""
                except OSError as failure:
                    is_open = isinstance(failure, TimeoutError)
    assert_problem(answer, 408)


def test_every_answer_has_the_security_headers(server: Server, owner: Client, program: Client) -> None:
    for client, path in (
        (owner, "/runs"), (owner, "/nothing"), (program, "/api/v1/runs"), (program, "/api/v1/nothing"),
        (Client(server), "/sign-in"), (Client(server), "/healthz"), (Client(server), "/assets/chart.js"),
        (Client(server), "/runs"),
    ):  # fmt: skip
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
        assert headers["cache-control"] == ("public, max-age=3600" if "assets" in path else "no-store")


def test_pages_have_nothing_inline(owner: Client, program: Client, team: str, key) -> None:
    run = program.begin_run(key())
    for path in ("/runs", f"/runs/{run}", f"/teams/{team}", f"/teams/{team}/tokens", "/account", "/nothing"):
        text = owner.get(path).text
        assert re.search(r"<script(?! src=)|<style| style=| on\w+=|javascript:", text) is None, path


def test_what_users_write_is_text_on_pages(owner: Client, program: Client, key) -> None:
    evil = "<script>alert(1)</script>\"'&{{csrf}}"
    run = program.begin_run(key(), name=evil, model=evil, machine=evil, project=key())
    for path in (f"/runs/{run}", "/runs"):
        text = owner.get(path).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;{{csrf}}" in text


def test_behind_a_proxy_that_speaks_tls(data) -> None:
    server = Server(data, "--url", "https://runs.example.com", "--trust-proxy", "127.0.0.1")
    try:
        key = server.first_key()
        client = Client(server)
        host = {"Host": "runs.example.com"}
        assert client.request("GET", "/healthz").status == 421
        answer = client.request("GET", "/healthz", None, host)
        assert answer.status == 200 and "max-age" in answer.headers["strict-transport-security"]
        form = {"Content-Type": "application/x-www-form-urlencoded", **host}
        body = f"csrf=&name=n&email=n%40example.com&password={PASSWORD.replace(' ', '+')}"
        forwarded = {"X-Forwarded-For": "6.6.6.6, 203.0.113.7"}
        answer = client.request("POST", f"/welcome/{key}", body, {**form, **forwarded})
        assert answer.status == 303
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-ms_session=") and "Secure" in cookie
        assert client.request("GET", "/account", None, host).status == 200
    finally:
        server.stop()
    line = next(line for line in server.log() if line.get("route") == "/welcome/{key}" and line["method"] == "POST")
    assert line["address"] == "203.0.113.7"  # what the proxy saw, not what the client claims


def test_forwarded_addresses_of_strangers_are_not_believed(server: Server) -> None:
    answer = Client(server).get("/api/v1/nothing", **{"X-Forwarded-For": "203.0.113.7"})
    assert server.wait_for_log(answer.json["instance"])["address"] == "127.0.0.1"


def test_the_log_holds_no_secret(server: Server, owner: Client, program: Client, team: str, join) -> None:
    join("viewer").sign_in("nobody@example.com", "a-password-to-look-for")
    Client(server).get("/welcome/asecretthatisguessed")
    Client(server, "ms_atokenthatisguessed").get("/api/v1/runs?project=inthequery")
    owner.get("/account")
    time.sleep(0.1)
    text = "".join(server.log_lines)
    assert owner.cookie is not None and program.token is not None
    for secret in (
        "a-password-to-look-for", PASSWORD, "asecretthatisguessed", "atokenthatisguessed", "inthequery",
        owner.cookie.split("=")[1], program.token,
    ):  # fmt: skip
        assert secret not in text


def test_the_database_holds_no_secret(server: Server, owner: Client, program: Client) -> None:
    assert owner.cookie is not None and program.token is not None
    for path in server.data.iterdir():
        data = path.read_bytes()
        assert owner.cookie.split("=")[1].encode() not in data and program.token.encode() not in data
        assert PASSWORD.encode() not in data
        assert path.stat().st_mode & 0o077 == 0


def test_head_is_get_without_a_body(server: Server) -> None:
    answer = Client(server).request("HEAD", "/healthz")
    assert answer.status == 200 and answer.body == b"" and answer.headers["content-length"] == "3"


def test_health_and_metrics(server: Server, owner: Client, program: Client, key) -> None:
    assert Client(server).get("/healthz").text == "ok\n"
    assert Client(server).get("/readyz").text == "ready\n"
    program.append(program.begin_run(key()), 1, steps(1, 7))
    page = owner.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert int(values["memscale_server_steps"]) >= 7
    assert int(values['memscale_server_requests_total{status="2xx"}']) > 0
    assert json.loads(values["memscale_server_viewers"]) >= 0


@on_sqlite
def test_a_port_that_is_taken_is_told(server: Server, data) -> None:
    line = [PROGRAM, "--data", str(data), "--port", str(server.port), *AS_USER]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "Address already in use" in ran.stderr
    for wrong in (["--port", "65536"], ["--port", "x"], ["--url", "https://a/b"], ["--listen", "localhost"], ["extra"]):
        ran = subprocess.run(
            [PROGRAM, "--data", str(data), *AS_USER, *wrong], capture_output=True, text=True, timeout=60
        )
        assert ran.returncode in (1, 2) and ran.stderr.startswith("memscale-server: "), wrong
