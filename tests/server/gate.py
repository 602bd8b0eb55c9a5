"""A bad network in front of the real server: requests that a test lets through, loses, delays or answers itself."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Callable
from typing import Any

from server_support import PATIENCE_S, Server

# What becomes of a request: given its number from 0 on and its path. "pass"; "lose" (never reaches the server);
# "mute" (reaches it, but the answer is lost); "hang" (no answer until the gate closes); or (status, headers).
Rule = Callable[[int, str], Any]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HTTPServer

    def do_POST(self) -> None:
        gate = self.server.gate
        body = self.rfile.read(int(self.headers["Content-Length"]))
        number = gate.count(self.path, dict(self.headers), body)
        fate = gate.rule(number, self.path)
        if fate == "hang":
            gate.closed.wait(PATIENCE_S)
        if fate in ("hang", "lose"):
            self.close_connection = True
            return
        if isinstance(fate, tuple):
            self._answer(fate[0], fate[1], b"{}")
            return
        status, headers, content = gate.ask_server(self.path, dict(self.headers), body)
        if fate == "mute" or status == 0:
            self.close_connection = True
            return
        self._answer(status, headers, content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _HTTPServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    gate: Gate


class Gate:
    """Listens on a port of its own and passes requests on to `server` (None: there is none), as `rule` says."""

    def __init__(self, server: Server | None, rule: Rule = lambda number, path: "pass") -> None:
        self.target = server
        self.rule = rule
        self.closed = threading.Event()
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self._lock = threading.Lock()
        self._http = _HTTPServer(("127.0.0.1", 0), _Handler)
        self._http.gate = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def count(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Notes a request and gives its number."""
        with self._lock:
            self.seen.append((path, headers, body))
            return len(self.seen) - 1

    def ask_server(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """The real server's answer; status 0 if it gave none."""
        if self.target is None:
            return 0, {}, b""
        headers["Host"] = f"127.0.0.1:{self.target.port}"
        connection = http.client.HTTPConnection("127.0.0.1", self.target.port, timeout=PATIENCE_S)
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            pause = response.getheader("Retry-After")
            return response.status, {} if pause is None else {"Retry-After": pause}, response.read()
        except (OSError, http.client.HTTPException):
            return 0, {}, b""
        finally:
            connection.close()

    def close(self) -> None:
        self.closed.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(PATIENCE_S)
