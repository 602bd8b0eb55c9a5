"""nginx and Caddy with the configurations of deploy/ in front of servers, and clients on their other side.

Names, ports, folders and certificates are put in; nothing else of a configuration is changed.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator

import pytest
from databases import free_port
from server_support import PATIENCE_S, ROOT, Answer, Client, Server

DEPLOY = ROOT / "deploy"
NAME = "runs.example.com"


def program_or_skip(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


class Proxied(Server):
    """A server behind a proxy; `port` is the proxy's, and a client speaks TLS to it."""

    def __init__(self, data: pathlib.Path, percent: int = 1000000) -> None:
        super().__init__(data, "--url", f"https://{NAME}", "--trust-proxy", "127.0.0.1", "--limits", str(percent))
        self.own_port = self.port


class Named(http.client.HTTPSConnection):
    """Sends the server's name in TLS, which Caddy chooses the certificate by."""

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = ssl._create_unverified_context().wrap_socket(self.sock, server_hostname=NAME)


class Outside(Client):
    """A browser or a training process on the other side of the proxy, at any of loopback's addresses."""

    address = "127.0.0.1"

    def connect(self) -> http.client.HTTPConnection:
        source = None if self.address == "127.0.0.1" else (self.address, 0)
        return Named("127.0.0.1", self.server.port, timeout=PATIENCE_S, source_address=source)

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
def nginx(folder: pathlib.Path, upstreams: list[int], port: int) -> Iterator[None]:
    program = program_or_skip("nginx")
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [program_or_skip("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         f"/CN={NAME}", "-keyout", private, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    text = (DEPLOY / "nginx.conf").read_text()
    for old, new in (
        ("server 127.0.0.1:8321;", " ".join(f"server 127.0.0.1:{upstream};" for upstream in upstreams)),
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
def caddy(folder: pathlib.Path, upstreams: list[int], port: int) -> Iterator[None]:
    program = program_or_skip("caddy")
    text = (DEPLOY / "Caddyfile").read_text()
    # A certificate of its own, on other ports, no door for changes of the configuration, and no wait for viewers.
    own = "{\n\tadmin off\n\tgrace_period 1s\n\tlocal_certs\n\tskip_install_trust\n"
    own += f"\thttp_port {free_port()}\n\thttps_port {port}\n"
    assert "\n{\n\tservers" in text
    (folder / "Caddyfile").write_text(text.replace("\n{\n\tservers", f"\n{own}\tservers"))
    with running(
        [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"], port,
        XDG_DATA_HOME=str(folder / "share"), XDG_CONFIG_HOME=str(folder / "config"), HOME=str(folder),
        MEMSCALE_UPSTREAM=" ".join(f"127.0.0.1:{upstream}" for upstream in upstreams),
    ):  # fmt: skip
        yield
