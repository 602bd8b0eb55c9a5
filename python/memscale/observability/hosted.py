"""Sends runs of this process to a memscale-server: `memscale.connect()`. Off unless the user asks for it.

What was not sent when the process ends is sent by the next process that connects, or by `memscale push`. Only the
process that connects sends; its forked children do not. Of several ranks only rank 0 does.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import math
import os
import pathlib
import sys
import threading
from typing import Any

from ..errors import ConfigError
from .connection import Connection, HostedRun
from .sender import Server

__all__ = ["begin_run", "connect", "disconnect", "ended_script", "outcome_of"]

_log = logging.getLogger("memscale")


class _State:
    """The process's connection. `is_settled`: the environment was asked, or need not be."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None
        self.exit_seconds = 0.0
        self.is_settled = False
        self.is_heard = False


_state = _State()


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    project: str | None = None,
    name: str | None = None,
    machine: str | None = None,
    spool_dir: str | os.PathLike[str] | None = None,
    spool_mb: float = 64.0,
    exit_seconds: float = 5.0,
    allow_http: bool = False,
) -> None:
    """Sends the runs of models that this process wraps to a memscale-server, until `disconnect()`.

    Steps never wait for it: they add to a queue, and threads write it to a spool on disk and send it. Call it before
    `wrap()`, so that a budget counts its memory (some MB).

    Args:
        url: the server, ``"https://runs.example.com"``; None for ``MEMSCALE_SERVER``.
        token: a token with the scope ``runs:write``; None for ``MEMSCALE_TOKEN``. It is never logged or stored.
        project: the runs' project on the server.
        name: the runs' name.
        machine: what the machine is called; nothing is sent of its name otherwise.
        spool_dir: a folder of this user alone for what was not sent yet; None for one below ``~/.cache/memscale``.
        spool_mb: the most that the spool may take, 1 MB = 1e6 bytes. If it is full, the oldest steps are dropped.
        exit_seconds: how long the end of the process may wait for the last steps to be sent.
        allow_http: whether the token may go over plain http to another machine.

    Raises:
        TypeError: an argument has a wrong type.
        ConfigError: an address, token or number that is not allowed. The text never repeats the token.
        MemScaleError: the spool's folder can't be made, or others may write it.
    """
    for field, text in (
        ("url", url), ("token", token), ("project", project), ("name", name), ("machine", machine),
    ):  # fmt: skip
        if text is not None and not isinstance(text, str):
            raise TypeError(f"connect: {field} must be a str or None, not {type(text).__qualname__}")
    if not isinstance(allow_http, bool):
        raise TypeError(f"connect: allow_http must be True or False, not {type(allow_http).__qualname__}")
    url = os.environ.get("MEMSCALE_SERVER", "") if url is None else url
    token = os.environ.get("MEMSCALE_TOKEN", "") if token is None else token
    for field, value, least, most in (("spool_mb", spool_mb, 1, 1e6), ("exit_seconds", exit_seconds, 0, 3600)):
        if not math.isfinite(value) or not least <= value <= most:
            raise ConfigError(f"connect: {field} must be {least} to {most:g}, not {value!r}", field=field)
    server = Server(url, token, allow_http)
    folder = _spool_folder(url, token) if spool_dir is None else pathlib.Path(spool_dir)
    given = {"project": project, "name": name, "machine": machine}
    names = {key: value for key, value in given.items() if value is not None}
    disconnect()
    with _state.lock:
        _state.is_settled = True
        _state.exit_seconds = exit_seconds
        if not _is_other_rank():
            _state.connection = Connection(server, names, str(folder.absolute()), int(spool_mb * 1e6))
        if not _state.is_heard:
            _state.is_heard = True
            atexit.register(_end_at_exit)
            os.register_at_fork(after_in_child=_forget_in_child)


def disconnect(seconds: float | None = None) -> None:
    """Ends what `connect()` began: runs that have not ended have stopped.

    Args:
        seconds: how long to wait at most until all is sent; None for `connect()`'s `exit_seconds`. What is not sent
            by then stays in the spool.
    """
    _end("stopped", seconds)


def _end(outcome: str, seconds: float | None) -> None:
    with _state.lock:
        connection, _state.connection = _state.connection, None
        _state.is_settled = True
    if connection is not None:
        connection.end(outcome, _state.exit_seconds if seconds is None else seconds)


def begin_run(model: str) -> HostedRun | None:
    """A run of a model of this class; None if runs are not sent."""
    if not _state.is_settled:
        _connect_by_environment()
    connection = _state.connection
    return connection.begin(model) if connection is not None and connection.is_open else None


def _connect_by_environment() -> None:
    """Setting both variables is asking for it. Not in processes that a loader or the tuner starts."""
    _state.is_settled = True
    if not os.environ.get("MEMSCALE_SERVER") or not os.environ.get("MEMSCALE_TOKEN"):
        return
    multiprocessing: Any = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        return
    try:
        connect()
    except Exception as error:  # training continues
        _log.warning("server: %s; nothing is sent", error)


def _is_other_rank() -> bool:
    return os.environ.get("RANK", "0") != "0"


def _spool_folder(url: str, token: str) -> pathlib.Path:
    """One for each server and token, so that no run goes to another team. The name tells neither."""
    digest = hashlib.blake2b(f"{url}\n{token}".encode(errors="replace"), digest_size=8).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(cache) / "memscale" / f"server-{digest}"


def outcome_of(kind: type[BaseException] | None) -> str:
    """How training ended that this kind of exception ended, or none."""
    if kind is None:
        return "finished"
    return "stopped" if issubclass(kind, KeyboardInterrupt) else "failed"


def ended_script() -> type[BaseException] | None:
    """At exit: the kind of the exception that ended the script, which the interpreter keeps; None: it has finished."""
    return getattr(sys, "last_type", None)


def _end_at_exit() -> None:
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C: the user does not want to wait
        _end(outcome_of(ended_script()), None)


def _forget_in_child() -> None:
    connection, _state.connection = _state.connection, None
    _state.lock = threading.Lock()
    _state.is_settled = True
    if connection is not None:
        connection.forget()
