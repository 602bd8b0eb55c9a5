"""The HTTP server of the metrics, which can't be used against the training process.

Scrapers come once in some seconds, one or two of them. So connections are few, one that says nothing is closed, and
only names that a page in somebody's browser can't claim for this machine are answered: addresses and the machine's own.
"""

from __future__ import annotations

import ipaddress
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

__all__ = ["MetricsServer"]

_CONNECTIONS_MOST = 16
_IDLE_SECONDS = 10.0

_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_SECONDS  # of each read and write on the connection

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""


class MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """Serves `application` on threads of its own, from construction to `end()`.

    Raises:
        OSError: the port can't be bound.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, application: _Application) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._free = threading.BoundedSemaphore(_CONNECTIONS_MOST)
        super().__init__(found[0][4][:2], _Handler)  # type: ignore[arg-type]
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}
        self._application = application
        self.set_app(self._checked)
        self._thread = threading.Thread(target=self.serve_forever, name="memscale-metrics", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        """As the base's, without its look-up of the machine's full name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """One connection, on its own thread; closed at once where too many are open."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread to be had
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is no matter of the run's."""

    def end(self) -> None:
        """Frees the port; requests under way may finish."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def _checked(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Content-Type", "text/plain"), ("Allow", "GET, HEAD")])
            return [b"only GET\n"]
        if not self._is_ours(environ.get("HTTP_HOST", "")):
            start("421 Misdirected Request", [("Content-Type", "text/plain")])
            return [b"ask by address, as localhost or by this machine's name\n"]
        return self._application(environ, start)

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True
