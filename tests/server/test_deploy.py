"""deploy/: nginx and Caddy run with the configurations as they are, units are as closed as they say, copies are kept.

Skipped by name where a program is not installed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from databases import free_port
from proxies import DEPLOY, NAME, Named, Outside, Proxied, caddy, nginx, program_or_skip
from server_support import (
    PATIENCE_S,
    PROGRAM,
    Server,
    first_team,
    make_token,
    on_sqlite,
    sign_up,
    steps,
)


@pytest.fixture(params=["nginx", "caddy"])
def proxied(request: pytest.FixtureRequest, data: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Proxied]:
    program_or_skip(request.param)
    server = Proxied(data)
    port = free_port()
    try:
        with {"nginx": nginx, "caddy": caddy}[request.param](tmp_path, [server.own_port], port):
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


def test_units_let_the_program_confine_itself() -> None:
    """systemd 252's groups of calls have neither; then the server would not start, or start without Landlock."""
    for unit, wanted in (
        (
            "memscale-server.service",
            {"seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"},
        ),
        ("memscale-server-backup.service", {"seccomp"}),
    ):
        lines = (DEPLOY / unit).read_text().splitlines()
        filters = [line.split("=", 1)[1] for line in lines if line.startswith("SystemCallFilter=")]
        last_refusal = max(number for number, text in enumerate(filters) if text.startswith("~"))
        assert wanted <= {name for text in filters[last_refusal + 1 :] for name in text.split()}, unit


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


def test_the_compose_file_of_two_servers_names_what_is_there() -> None:
    yaml = pytest.importorskip("yaml")
    base = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    text = (DEPLOY / "compose.postgresql.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    upstreams = services["caddy"]["environment"]["MEMSCALE_UPSTREAM"].split()
    assert upstreams == [f"{name}:8321" for name in ("server", "second")]
    line = services["server"]["command"]
    assert services["second"]["command"] == line and services["second"]["extends"]["service"] in base
    assert base["caddy"]["networks"]["inside"]["ipv4_address"] in line
    help_text = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(word in help_text for word in line if word.startswith("--"))
    (url,) = (word for word in line if word.startswith("postgresql://"))
    assert "PASSWORD" not in url and url.split("@")[1] == "postgresql/memscale" and "postgresql" in services


def test_the_unit_of_a_server_with_postgresql_is_closed(tmp_path: pathlib.Path) -> None:
    analyze = program_or_skip("systemd-analyze")
    unit = tmp_path / "memscale-server.service"
    unit.write_text(
        (DEPLOY / "memscale-server.service").read_text().replace("[Install]", "")
        + (DEPLOY / "memscale-server-postgresql.conf").read_text()
    )
    line = [analyze, "security", "--offline=true", "--threshold=20", str(unit)]
    told = subprocess.run(line, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout[-1500:] + told.stderr


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
