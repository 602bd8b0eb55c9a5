"""Sends logs of runs to a memscale-server: the HTTP of `memscale push` and of `memscale.connect()`.

C decides what is sent next, when, and what an answer means (src/observability/push.h). This module opens
connections, with short time limits, and hands over bytes. No error of the network is raised: each is an answer
with status 0. Redirects are not followed, so the token goes to the given address only.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import Any

from .. import _core

__all__ = ["Server", "send_due"]

_TIMEOUT_S = 10.0
_ANSWER_MOST_BYTES = 65536
# Servers close connections that are idle for longer; ours does after 30 s.
_REUSE_S = 15.0


class Server:
    """A server's address and token, and one connection to it that is kept.

    Args:
        url: ``"https://host"``, perhaps with a port and a path.
        token: as the server showed it. It is held here and in the requests only.
        allow_http: whether plain http may go to other machines.

    Raises:
        ConfigError: the address or the token is not allowed.
    """

    def __init__(self, url: str, token: str, allow_http: bool = False) -> None:
        self._is_https, self._host, self._port, self._path = _core.server_url(url, allow_http)
        _core.server_token(token)
        self._token = token
        self._connection: http.client.HTTPConnection | None = None
        self._used_at = 0.0
        self._context = _tls_context() if self._is_https else None

    def __repr__(self) -> str:
        return f"Server({self.address!r})"

    @property
    def address(self) -> str:
        """The address without the token, for messages."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._is_https else 'http'}://{host}:{self._port}{self._path}"

    def post(self, target: str, key: str | None, body: bytes) -> tuple[int, int, bytes]:
        """One request: status, seconds of Retry-After (0: none), body. Status 0 with a reason if no answer came."""
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "User-Agent": f"memscale/{_core.version()}",
        }
        if key is not None:
            headers["Idempotency-Key"] = key
        try:
            connection = self._connect()
            connection.request("POST", self._path + target, body, headers)
            response = connection.getresponse()
            content = response.read(_ANSWER_MOST_BYTES)
            if response.will_close or not response.isclosed():
                self.close()
            return response.status, _seconds(response.getheader("Retry-After")), content
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return 0, 0, (str(error) or type(error).__name__).encode(errors="replace")

    def _connect(self) -> http.client.HTTPConnection:
        if time.monotonic() - self._used_at > _REUSE_S:
            self.close()
        if self._connection is None:
            if self._context is not None:
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=_TIMEOUT_S, context=self._context
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        self._used_at = time.monotonic()
        return self._connection

    def close(self) -> None:
        """Closes the connection. A later request opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _tls_context() -> Any:
    """Made at once, so that a budget that `wrap()` measures later includes its memory."""
    import ssl

    return ssl.create_default_context()


def _seconds(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 9 else 0


def send_due(push: Any, server: Server, may_go_on: Callable[[], bool]) -> tuple[str, float, str]:
    """Sends what is due, one request after the other.

    Args:
        push: of `_core.push_new()`.
        may_go_on: asked before each request.

    Returns:
        The state at the end (``"send"`` if there was no leave to go on, ``"wait"``, ``"idle"``, ``"stopped"``),
        seconds to wait, and the reason of a stop.
    """
    while True:
        if not may_go_on():
            return "send", 0.0, ""
        state, wait_s, text, key, body = _core.push_next(push)
        if state != "send":
            return state, wait_s, text
        _core.push_answered(push, *server.post(text, key, body))
