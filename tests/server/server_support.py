"""What the server's tests share: the real binary on loopback with a database of its own, and clients of it.

`MEMSCALE_SERVER_PROGRAM` names the binary; scripts/test_server.sh sets it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.parse
from typing import Any

import databases
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("MEMSCALE_SERVER_PROGRAM", str(ROOT / "build" / "asan" / "server" / "memscale-server"))
PASSWORD = "correct horse battery"
PATIENCE_S = 120.0
# Root has to say whom a server becomes; these stay, without capabilities, because the tests' folders are root's alone.
AS_USER = ["--user", "root"] if os.geteuid() == 0 else []


class Answer:
    """Status, headers (lower case) and body of one exchange."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """One process of the binary. `url_of_first_owner` is None where the database had accounts."""

    def __init__(self, data: pathlib.Path, *options: str) -> None:
        self.data = data
        self.log_lines: list[str] = []
        self.process = subprocess.Popen(
            self.command(data, options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", first)
        if found is None and "https://" not in first:
            raise RuntimeError(f"the server did not start: {first}{self.process.communicate()[1]}")
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.port = int(found.group(1)) if found else self._port_of_log()
        self._first_line = first

    def command(self, data: pathlib.Path, options: tuple[str, ...]) -> list[str]:
        """What is started."""
        place = databases.choice.now.options(data)
        return [PROGRAM, *place, "--port", "0", *AS_USER, *options]  # a later option counts

    def environment(self) -> dict[str, str]:
        """What it is started with."""
        return {**os.environ, **databases.choice.now.environment()}

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log_lines.append(line)

    def _port_of_log(self) -> int:
        """Where the URL is another's, the socket tells."""
        inodes = set()
        for entry in pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(entry))
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                return int(fields[1].split(":")[1], 16)
        raise RuntimeError("the server listens nowhere")

    def first_key(self) -> str:
        """The secret of the one-time link that the first start prints."""
        assert self.process.stdout is not None
        found = re.search(r"/welcome/(\w+)", self.process.stdout.readline())
        assert found is not None
        return found.group(1)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Ends the process and waits for it."""
        self.process.send_signal(how)
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self.process.stdout.close()  # type: ignore[union-attr]
        self.process.stderr.close()  # type: ignore[union-attr]
        if status != -how and status != 0:
            raise AssertionError(f"the server ended with {status}: " + "".join(self.log_lines[-60:]))
        return status

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log so far."""
        return [json.loads(line) for line in list(self.log_lines) if line.startswith("{")]

    def wait_for_log(self, request: str) -> dict[str, Any]:
        """The line of the request with this number."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for line in self.log():
                if line.get("request") == request:
                    return line
            time.sleep(0.01)
        raise AssertionError(f"no line of {request}")


class Client:
    """Speaks to a server over one connection; with a token, or with the cookie of a browser."""

    def __init__(self, server: Server, token: str | None = None) -> None:
        self.server = server
        self.token = token
        self.cookie: str | None = None
        self.account = ""
        self._connection: http.client.HTTPConnection | None = None

    def request(
        self, method: str, path: str, body: bytes | str | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One exchange; a connection that the server has closed meanwhile is made again."""
        sent = dict(headers or {})
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        if self.cookie is not None:
            sent.setdefault("Cookie", self.cookie)
        for attempt in range(2):
            if self._connection is None:
                self._connection = self.connect()
            try:
                self._connection.request(method, path, body, sent)
                answer = Answer(self._connection.getresponse())
                break
            except (http.client.RemoteDisconnected, ConnectionError, http.client.CannotSendRequest):
                self.close()
                if attempt == 1:
                    raise
        if answer.headers.get("connection") == "close":
            self.close()
        cookie = answer.headers.get("set-cookie")
        if cookie is not None:
            name_value = cookie.split(";")[0]
            self.cookie = None if name_value.endswith("=") else name_value
        return answer

    def connect(self) -> http.client.HTTPConnection:
        """A new connection to the server."""
        return http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_S)

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, None, headers)

    def csrf(self) -> str:
        """The form token of the session's pages."""
        found = re.search(r'name="csrf" value="(\w*)"', self.get("/account").text)
        return found.group(1) if found else ""

    def send(self, method: str, path: str, value: Any = None, **headers: str) -> Answer:
        """JSON, or no body; with the form token where the session needs it."""
        if self.cookie is not None and self.token is None:
            headers.setdefault("X-CSRF-Token", self.csrf())
        body = None
        if value is not None:
            body = json.dumps(value)
            headers.setdefault("Content-Type", "application/json")
        return self.request(method, path, body, headers)

    def form(self, path: str, csrf: str | None = None, **fields: str) -> Answer:
        """What a browser sends for a form."""
        if csrf is None:
            csrf = self.csrf() if self.cookie is not None else ""
        body = urllib.parse.urlencode({"csrf": csrf, **fields})
        return self.request("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded"})

    def sign_in(self, email: str, password: str = PASSWORD) -> Answer:
        return self.form("/sign-in", csrf="", email=email, password=password)

    def begin_run(self, key: str, **members: Any) -> str:
        """Makes a run and gives its id."""
        answer = self.send("POST", "/api/v1/runs", {"model": "GPT2LMHeadModel", **members}, **{"Idempotency-Key": key})
        assert answer.status in (200, 201), answer.text
        return answer.json["id"]

    def append(self, run: str, sequence: int, steps: list[dict[str, Any]]) -> Answer:
        """Sends steps, each an object, as the columns of a batch."""
        names = sorted({name for step in steps for name in step})
        columns = {name: [step.get(name) for step in steps] for name in names}
        return self.send_batch(run, sequence, columns)

    def send_batch(self, run: str, sequence: Any, columns: Any) -> Answer:
        return self.send("POST", f"/api/v1/runs/{run}/steps", {"sequence": sequence, "columns": columns})


# For tests of one database alone.
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True, scope="session")
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True, scope="session")


def run_program(*arguments: object) -> subprocess.CompletedProcess[str]:
    """One of the program's commands."""
    environment = {**os.environ, **databases.choice.now.environment()}
    line = [PROGRAM, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)


def check_database(data: pathlib.Path) -> None:
    """The audit's rows follow from each other; of SQLite also pages and references, in a copy."""
    place: list[object] = list(databases.choice.now.options(data))
    if databases.choice.now.name == "sqlite":
        copy = data.parent / "checked.db"
        assert run_program("backup", *place, copy).returncode == 0
        place = [copy]
    checked = run_program("restore", "--check", *place)
    assert checked.returncode == 0, checked.stderr


def steps(first: int, count: int) -> list[dict[str, int]]:
    """Plausible steps, numbered from `first`."""
    return [
        {
            "step": number,
            "step_ns": 900_000_000 + number,
            "peak_bytes": 3_900_000_000 + number * 1000,
            "resident_bytes": 3_000_000_000,
            "predicted_peak_bytes": 3_870_000_000,
            "predicted_step_ns": 890_000_000,
            "budget_bytes": 4_000_000_000,
        }
        for number in range(first, first + count)
    ]


def sign_up(server: Server, key: str, name: str) -> Client:
    """A new account through a link, signed in."""
    client = Client(server)
    answer = client.form(f"/welcome/{key}", csrf="", name=name, email=f"{name}@example.com", password=PASSWORD)
    assert answer.status == 303, answer.text
    client.account = client.get("/api/v1/account").json["account"]["id"]
    return client


def invite(client: Client, team: str, role: str) -> str:
    """The secret of a new link into the team."""
    answer = client.send("POST", f"/api/v1/teams/{team}/invitations", {"role": role})
    assert answer.status == 201, answer.text
    return answer.json["link"].rsplit("/", 1)[1]


def make_token(client: Client, team: str, *scopes: str) -> str:
    """The secret of a new token of the team."""
    answer = client.send("POST", f"/api/v1/teams/{team}/tokens", {"name": "test", "scopes": list(scopes)})
    assert answer.status == 201, answer.text
    return answer.json["token"]


def first_team(client: Client) -> str:
    """The id of the first of the account's teams."""
    return client.get("/api/v1/teams").json["items"][0]["id"]
