"""The HTTP server of the metrics. It limits connections and host names, to protect the training process.

A few scrapers connect every few seconds, so the number of connections is small and idle ones are closed. The server
answers only requests for an address or for the machine's own names. A web page in a browser of this machine could
otherwise read the metrics through a domain of its own that it points here.
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
    timeout = _IDLE_SECONDS  # for each read and write on the connection

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, because scrapes are frequent."""


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
        """Binds the port without looking up the machine's full name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves one connection on its own thread, or closes it if too many are open."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a broken connection, because it does not concern the run."""

    def end(self) -> None:
        """Frees the port. Requests under way may finish."""
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
