"""deploy/: nginx and Caddy run with the configurations as they are, units are as closed as they say, copies are kept.

Names, ports, folders and certificates are put in; nothing else of a configuration is changed. Skipped by name where a
program is not installed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator

import pytest
from server_support import PATIENCE_S, PROGRAM, ROOT, Answer, Client, Server, first_team, make_token, on_sqlite, sign_up, steps

DEPLOY = ROOT / "deploy"
NAME = "runs.example.com"


def program_or_skip(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxied(Server):
    """The server behind a proxy; `port` is the proxy's, and a client speaks TLS to it."""

    def __init__(self, data: pathlib.Path) -> None:
        super().__init__(data, "--url", f"https://{NAME}", "--trust-proxy", "127.0.0.1", "--limits", "1000000")
        self.own_port = self.port


class Named(http.client.HTTPSConnection):
    """Sends the server's name in TLS, which Caddy chooses the certificate by."""

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = ssl._create_unverified_context().wrap_socket(self.sock, server_hostname=NAME)


class Outside(Client):
    """A browser or a training process on the other side of the proxy."""

    def connect(self) -> http.client.HTTPConnection:
        return Named("127.0.0.1", self.server.port, timeout=PATIENCE_S)

    def request(
        self, method: str, path: str, body: bytes | str | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        return super().request(method, path, body, {"Host": NAME, **(headers or {})})


@contextlib.contextmanager
def running(line: list[str], port: int, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A proxy that listens."""
    process = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@contextlib.contextmanager
def nginx(folder: pathlib.Path, upstream: int, port: int) -> Iterator[None]:
    program = program_or_skip("nginx")
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [program_or_skip("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         f"/CN={NAME}", "-keyout", private, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    text = (DEPLOY / "nginx.conf").read_text()
    for old, new in (
        ("127.0.0.1:8321", f"127.0.0.1:{upstream}"),
        ("listen 80;\n    listen [::]:80;", f"listen 127.0.0.1:{free_port()};"),
        ("listen 443 ssl http2;\n    listen [::]:443 ssl http2;", f"listen 127.0.0.1:{port} ssl http2;"),
        ("/etc/letsencrypt/live/runs.example.com/fullchain.pem", str(certificate)),
        ("/etc/letsencrypt/live/runs.example.com/privkey.pem", str(private)),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "site.conf").write_text(text)
    places = "".join(
        f"{name}_temp_path {folder}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; events {{}}\n"
        f"http {{ access_log off; {places} include {folder}/site.conf; }}\n"
    )
    with running([program, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")], port):
        yield


@contextlib.contextmanager
def caddy(folder: pathlib.Path, upstream: int, port: int) -> Iterator[None]:
    program = program_or_skip("caddy")
    text = (DEPLOY / "Caddyfile").read_text()
    # A certificate of its own, on other ports, and no door for changes of the configuration.
    own = f"{{\n\tadmin off\n\tlocal_certs\n\tskip_install_trust\n\thttp_port {free_port()}\n\thttps_port {port}\n"
    assert "\n{\n\tservers" in text
    (folder / "Caddyfile").write_text(text.replace("\n{\n\tservers", f"\n{own}\tservers"))
    with running(
        [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"], port,
        XDG_DATA_HOME=str(folder / "share"), XDG_CONFIG_HOME=str(folder / "config"), HOME=str(folder),
        MEMSCALE_UPSTREAM=f"127.0.0.1:{upstream}",
    ):  # fmt: skip
        yield


@pytest.fixture(params=["nginx", "caddy"])
def proxied(request: pytest.FixtureRequest, data: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Proxied]:
    program_or_skip(request.param)
    server = Proxied(data)
    port = free_port()
    try:
        with {"nginx": nginx, "caddy": caddy}[request.param](tmp_path, server.own_port, port):
            server.port = port
            yield server
    finally:
        server.stop()


def test_people_and_programs_come_through_a_proxy(proxied: Proxied) -> None:
    key = proxied.first_key()
    owner = Outside(proxied)
    answer = owner.form(
        f"/welcome/{key}", csrf="", name="owner", email="owner@example.com", password="correct horse battery"
    )
    assert answer.status == 303, answer.text
    assert answer.headers["set-cookie"].startswith("__Host-") and "Secure" in answer.headers["set-cookie"]
    assert "max-age" in answer.headers["strict-transport-security"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    program = Outside(proxied, make_token(owner, first_team(owner), "runs:write", "runs:read"))
    run = program.begin_run("one")
    # Events come while the answer goes on.
    stream = Named("127.0.0.1", proxied.port, timeout=PATIENCE_S)
    stream.request(
        "GET", f"/api/v1/runs/{run}/events", headers={"Host": NAME, "Authorization": f"Bearer {program.token}"}
    )
    events = stream.getresponse()
    assert events.status == 200
    for sequence in (1, 2):
        assert program.append(run, sequence, steps(10 * sequence, 5)).status == 200
        while b'"sequence":%d' % sequence not in events.fp.readline():
            pass
    stream.close()
    # What a client says of its address is not believed.
    lied = program.request(
        "GET", "/api/v1/nothing", None, {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9"}
    )
    assert proxied.wait_for_log(lied.json["instance"])["address"] == "127.0.0.1"
    # A body that no route takes ends at the proxy or at the server; both stay.
    too_much = Outside(proxied, program.token)
    with contextlib.suppress(OSError, http.client.HTTPException):
        assert (
            too_much.request("POST", "/api/v1/plans", b" " * 17_000_000, {"Content-Type": "application/json"}).status
            == 413
        )
    # Another name reaches nothing of ours.
    other = Named("127.0.0.1", proxied.port, timeout=PATIENCE_S)
    with contextlib.suppress(OSError, http.client.HTTPException):
        other.request("GET", "/sign-in", headers={"Host": "evil.example"})
        assert b"Password" not in other.getresponse().read()
    assert program.get("/healthz").status == 200


def test_units_are_closed() -> None:
    analyze = program_or_skip("systemd-analyze")
    for unit in ("memscale-server.service", "memscale-server-backup.service"):
        told = subprocess.run(
            [analyze, "security", "--offline=true", "--threshold=15", str(DEPLOY / unit)],
            capture_output=True,
            text=True,
        )
        assert told.returncode == 0, told.stdout[-1500:] + told.stderr


def test_the_compose_file_names_what_is_there() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    address = services["caddy"]["networks"]["inside"]["ipv4_address"]
    assert address in services["server"]["command"]  # the proxy that is trusted
    help_text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    for option in (word for word in services["server"]["command"] if word.startswith("--")):
        assert option in help_text
    image = (DEPLOY / "Dockerfile").read_text()
    entry = json.loads(image.rsplit("ENTRYPOINT ", 1)[1])
    assert all(word in help_text for word in entry if word.startswith("--"))


@on_sqlite
def test_the_newest_copies_are_kept(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    server = Server(data)
    sign_up(server, server.first_key(), "owner")
    folder = tmp_path / "copies"
    folder.mkdir()
    old = [folder / f"memscale-2020010{day}T000000Z.db" for day in range(1, 6)]
    for path in (*old, folder / "mine.db"):
        path.write_text("")
    line = ["sh", str(DEPLOY / "memscale-server-backup"), str(data), str(folder), "3"]
    environment = {**os.environ, "MEMSCALE_SERVER_PROGRAM": PROGRAM}
    ran = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    kept = sorted(path.name for path in folder.iterdir())
    assert kept[:3] == [old[3].name, old[4].name, kept[2]] and kept[3:] == ["mine.db"]
    copy = folder / kept[2]
    assert copy.stat().st_mode & 0o077 == 0
    assert subprocess.run([PROGRAM, "restore", "--check", str(copy)], capture_output=True).returncode == 0
    server.stop()
    (data / "memscale.db").write_bytes(b"no database" * 1000)
    ran = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert ran.returncode != 0 and sorted(path.name for path in folder.iterdir()) == kept
