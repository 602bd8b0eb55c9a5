"""Load on the server, measured by wrk: `python tests/server/load.py [SECONDS] [postgresql]` prints a table.

Never a test: speed is measured. nginx serving a file of the same size stands beside it in the same run, where nginx is
installed.
"""

from __future__ import annotations

import json
import pathlib
import re
import resource
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import databases
from server_support import Client, Server, first_team, make_token, sign_up, steps

SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
CONNECTIONS = 64


def wrk(url: str, script: str, connections: int = CONNECTIONS) -> dict[str, float]:
    """Requests a second, the 50th and 99th percentile in ms, answers other than 2xx."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        line = ["wrk", "-t", "1", "-c", str(connections), "-d", f"{SECONDS}s", "--latency", "-s", file.name, url]
        ran = subprocess.run(line, capture_output=True, text=True, check=True)
    assert ran.stderr == "", ran.stderr  # of a script that wrk did without
    text = ran.stdout

    def milliseconds(name: str) -> float:
        found = re.search(rf"{name}%\s+([\d.]+)(us|ms|s)", text)
        assert found is not None, text
        return float(found.group(1)) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found.group(2)]

    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    assert rate is not None, text
    return {
        "per_s": float(rate.group(1)),
        "p50_ms": milliseconds("50"),
        "p99_ms": milliseconds("99"),
        "wrong": int(wrong.group(1)) if wrong else 0,
    }


def append_script(token: str, runs: list[str]) -> str:
    """Each request appends the next 100 steps to one of many runs, in turn: every batch is new and stored."""
    columns = {name: [step[name] for step in steps(1, 100)] for name in steps(1, 1)[0]}
    body = json.dumps({**columns, "step": "@"}, separators=(",", ":")).replace('"@"', "%s")
    names = ",".join(f'"{run}"' for run in runs)
    return f"""
local runs, sequence, at = {{{names}}}, {{}}, 0
local body = [==[{body}]==]
local headers = {{["Content-Type"] = "application/json", ["Authorization"] = "Bearer {token}"}}
function request()
  at = at % #runs + 1
  local run = runs[at]
  sequence[run] = (sequence[run] or 0) + 1
  local first, numbers = sequence[run] * 100, {{}}
  for i = 0, 99 do numbers[#numbers + 1] = first + i end
  local text = '{{"sequence":' .. sequence[run] .. ',"columns":'
    .. string.format(body, "[" .. table.concat(numbers, ",") .. "]") .. '}}'
  return wrk.format("POST", "/api/v1/runs/" .. run .. "/steps", headers, text)
end
"""


def get_script(token: str) -> str:
    return f'wrk.headers["Authorization"] = "Bearer {token}"\n' if token else ""


def flood_script() -> str:
    """Sign-ins with wrong passwords: each costs an Argon2id."""
    return """
wrk.method, wrk.body = "POST", "csrf=&email=owner%40example.com&password=not+the+password"
wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
"""


def while_flooded(url: str, page: str, script: str) -> dict[str, float]:
    """The page's figures while eight connections try passwords without a pause."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(flood_script())
        file.flush()
        line = ["wrk", "-t", "1", "-c", "8", "-d", f"{SECONDS + 4}s", "-s", file.name, url + "/sign-in"]
        with subprocess.Popen(line, stdout=subprocess.DEVNULL) as flood:
            time.sleep(1)
            row = wrk(url + page, script, 4)
            flood.wait()
    return row


def resident_bytes(server: Server) -> int:
    text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(text.split("VmRSS:")[1].split()[0])


def idle(server: Server, count: int) -> float:
    """MB that so many connections take that have sent nothing."""
    before = resident_bytes(server)
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
    time.sleep(1)
    taken = resident_bytes(server) - before
    for one in sockets:
        one.close()
    return taken / 1e6


def live(server: Server, program: Client, count: int) -> tuple[float, float]:
    """ms from an append until the first and the last of so many viewers have it."""
    run = program.begin_run("watched")
    selector = selectors.DefaultSelector()
    head = f"GET /api/v1/runs/{run}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {program.token}\r\n\r\n"
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", server.port))
        one.sendall(head.encode())
        selector.register(one, selectors.EVENT_READ)
    time.sleep(3)
    for key, _ in selector.select(0):  # heads and greetings
        key.fileobj.recv(65536)  # type: ignore[union-attr]
    begun = time.monotonic()
    assert program.append(run, 1, steps(1, 1)).status == 200
    times: list[float] = []
    while len(times) < count:
        for key, _ in selector.select(60):
            if b'"sequence":1' in key.fileobj.recv(65536):  # type: ignore[union-attr]
                times.append(1000 * (time.monotonic() - begun))
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
    return times[0], times[-1]


def serve_by_nginx(folder: pathlib.Path, size: int) -> subprocess.Popen | None:
    """The yardstick: a file of so many bytes on port 8399."""
    if shutil.which("nginx") is None:
        return None
    folder.chmod(0o755)
    (folder / "file").write_bytes(b"x" * size)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/log; worker_processes 2; events {{}}\n"
        f"http {{ access_log off; server {{ listen 127.0.0.1:8399; root {folder}; }} }}\n"
    )
    process = subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "log")])
    time.sleep(1)
    return process


def main() -> None:
    """The table."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    programs = databases.find_programs() if "postgresql" in sys.argv[2:] else None
    if programs is not None:
        databases.choice.now = databases.Postgres(programs, is_quick=False)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # A trusted proxy may have any number of connections.
        server = Server(folder / "data", "--limits", "1000000", "--trust-proxy", "127.0.0.1")
        owner = sign_up(server, server.first_key(), "owner")
        token = make_token(owner, first_team(owner), "runs:write", "runs:read")
        program = Client(server, token)
        url = f"http://127.0.0.1:{server.port}"
        rows: list[tuple[str, dict[str, float]]] = []
        for connections in (64, 256):
            # Far more runs than connections, so that no two batches of a run are on their way at the same time.
            runs = [program.begin_run(f"load-{connections}-{i}") for i in range(16 * connections)]
            rows.append(
                (f"append 100 steps, {connections} connections", wrk(url, append_script(token, runs), connections))
            )
            stored = sum(program.get(f"/api/v1/runs/{run}").json["last_sequence"] for run in runs)
            assert stored >= rows[-1][1]["per_s"] * SECONDS * 0.9, stored
        long_run = program.begin_run("long")
        for sequence in range(1, 101):
            assert program.append(long_run, sequence, steps(1 + 1000 * (sequence - 1), 1000)).status == 200
        page = f"/api/v1/runs/{long_run}/steps?points=1000"
        size = len(program.get(page).body)
        rows.append(("points of 100,000 steps, 1 connection", wrk(url + page, get_script(token), 1)))
        rows.append(("one run", wrk(f"{url}/api/v1/runs/{long_run}", get_script(token))))
        one_run = f"/api/v1/runs/{long_run}"
        rows.append(("one run, 4 connections", wrk(url + one_run, get_script(token), 4)))
        rows.append(("the same under a flood of sign-ins", while_flooded(url, one_run, get_script(token))))
        rows.append(("healthz", wrk(url + "/healthz", "")))
        idle_mb, seen_ms = idle(server, 10_000), live(server, program, 1000)
        nginx = serve_by_nginx(folder, size)
        if nginx is not None:
            rows.append((f"nginx, a file of {size} bytes, 1 connection", wrk("http://127.0.0.1:8399/file", "", 1)))
            (folder / "file").write_bytes(b"ok\n")
            rows.append(("nginx, a file of 3 bytes", wrk("http://127.0.0.1:8399/file", "")))
            nginx.terminate()
            nginx.wait()
        numbers = dict(
            line.rsplit(" ", 1) for line in owner.get("/metrics").text.splitlines() if not line.startswith("#")
        )
        server.stop()
    if isinstance(databases.choice.now, databases.Postgres):
        databases.choice.now.close()
    print(f"{'':44} {'per s':>9} {'p50 ms':>8} {'p99 ms':>8} {'not 2xx':>8}")
    for what, row in rows:
        print(f"{what:44} {row['per_s']:9.0f} {row['p50_ms']:8.2f} {row['p99_ms']:8.2f} {row['wrong']:8.0f}")
    print(f"10,000 idle connections take {idle_mb:.0f} MB")
    print(f"1,000 viewers have a step {seen_ms[0]:.0f} to {seen_ms[1]:.0f} ms after it was sent")
    commits = int(numbers["memscale_server_commits_total"])
    print(f"{int(numbers['memscale_server_writes_total']) / commits:.1f} writes a commit")


main()
