"""A connection to a memscale-server, as `hosted.py` makes it: steps become rows of a queue, rows become lines of a
spool, and lines are sent.

A step only adds a row to a bounded queue in memory. One thread writes the rows to the spool, another sends what lies
there (sender.py); C decides what, when and how often (src/observability/spool.h, push.h). A slow or dead server, a
full disk or a bug here costs lines, never a step.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import MemScaleError
from .sender import Server, send_due

__all__ = ["Connection", "HostedRun"]

_log = logging.getLogger("memscale")

_QUEUE_MOST = 4096
_WRITE_EVERY_S = 0.25
_SEND_EVERY_S = 1.0
_TELL_AFTER_S = 30.0


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """A training step calls it: nothing but an interrupt leaves it."""

    @functools.wraps(method)
    def call(*args: Any) -> None:
        with contextlib.suppress(Exception):
            method(*args)

    return call


class HostedRun:
    """One wrapped model, as the server sees it. Its methods only add to a queue, and may be called by any thread."""

    def __init__(self, connection: Connection, model: str) -> None:
        self._connection = connection
        self._head = {"key": uuid.uuid4().hex, "model": model, "versions": _versions(), **connection.names}
        self._documents: dict[str, Any] = {}
        self._is_ended = False
        self.number: int | None = None  # in the spool; set by the thread that writes it

    @property
    def is_live(self) -> bool:
        """Whether further steps would be sent."""
        return self._connection.is_open and not self._is_ended

    @_harmless
    def planned(self, documents: dict[str, Any]) -> None:
        """A plan was made from these: ``plan``, ``graph``, ``hardware`` and ``config``. The first ones are sent."""
        if not self._documents:
            self._documents = documents
            self._connection.add(self, None)

    @_harmless
    def step(self, numbers: dict[str, int | None]) -> None:
        """A step has ended. `numbers` is not changed afterwards."""
        if not self._is_ended:
            self._connection.add(self, {"event": "step", "step": numbers})

    @_harmless
    def ended(self, outcome: str, counters: dict[str, int] | None = None) -> None:
        """The run is over: finished, failed, infeasible or stopped. A second call does nothing."""
        if not self._is_ended:
            self._is_ended = True
            self._connection.add(self, {"event": "finish", "outcome": outcome, "counters": counters or {}})

    def begin_line(self, when: float) -> str:
        """The run's first line in the spool."""
        return _line(when, {"event": "plan", "run": self._head, **self._documents})


def _versions() -> dict[str, str]:
    found = {"memscale": _core.version(), "python": ".".join(map(str, sys.version_info[:3]))}
    torch = getattr(sys.modules.get("torch"), "__version__", None)
    return found if torch is None else {**found, "torch": str(torch)}


def _line(when: float, fields: dict[str, Any]) -> str:
    text = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(when))
    return json.dumps({"version": 1, "time": text, "message": "", **fields})


class Connection:
    """A queue, a thread that spools it and a thread that sends the spool, until `end()`.

    Args:
        server: where to.
        names: `project`, `name` and `machine` of the runs, if the user gave them.
        folder: the spool; made if needed.
        most_bytes: the spool's bound.

    Raises:
        MemScaleError: the folder can't be made or used.
    """

    def __init__(self, server: Server, names: dict[str, str], folder: str, most_bytes: int) -> None:
        self.names = names
        self._server = server
        self._folder = folder
        self._own = f"{time.time_ns():016x}-{uuid.uuid4().hex[:8]}-"
        self._spool = _core.spool_open(folder, most_bytes, self._own)
        self._push = _core.push_new(None, None, False, 0.0)
        self._rows: collections.deque[tuple[HostedRun, float, dict[str, Any] | None]]
        self._rows = collections.deque(maxlen=_QUEUE_MOST)
        self._runs: set[HostedRun] = set()
        self._told: set[str] = set()
        self.is_open = True
        self._until = float("inf")
        self._failing_since: float | None = None
        self._is_ending, self._is_spooled, self._has_ended = threading.Event(), threading.Event(), threading.Event()
        self._start(self._spool_rows, self._is_spooled)
        self._start(self._send_spool, self._has_ended)

    def _start(self, body: Callable[[], None], done: threading.Event) -> None:
        threading.Thread(target=self._run, args=(body, done), name="memscale-hosted", daemon=True).start()

    def _run(self, body: Callable[[], None], done: threading.Event) -> None:
        try:
            body()
        except Exception:  # a bug of ours: training continues
            self.is_open = False
            _log.warning("server: sending the run failed; nothing more is sent", exc_info=True)
        finally:
            done.set()

    # -- any thread ------------------------------------------------------------------------

    def begin(self, model: str) -> HostedRun:
        """A new run of a model of this class."""
        run = HostedRun(self, model)
        self._runs.add(run)
        return run

    def add(self, run: HostedRun, fields: dict[str, Any] | None) -> None:
        """Adds a row and never waits. If the queue is full, its oldest row is lost."""
        if self.is_open:
            self._rows.append((run, time.time(), fields))

    def end(self, outcome: str, seconds: float) -> None:
        """Ends the runs that have not ended, and waits for at most `seconds` until all is sent."""
        for run in list(self._runs):
            run.ended(outcome)
        self.is_open = False
        self._until = time.monotonic() + seconds
        self._is_ending.set()
        self._has_ended.wait(seconds)

    def forget(self) -> None:
        """In a forked child: runs, threads and files are the parent's."""
        self.is_open = False
        self._rows.clear()

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning("server: %s", text)

    # -- the thread that writes --------------------------------------------------------------

    def _spool_rows(self) -> None:
        is_last = False
        while not is_last:
            self._is_ending.wait(_WRITE_EVERY_S)
            is_last = self._is_ending.is_set()
            if len(self._rows) == _QUEUE_MOST:
                self._tell("the disk of the spool is too slow; steps are lost")
            while self._rows:
                self._spool_row(*self._rows.popleft())
            if _core.spool_has_dropped(self._spool):
                self._tell(f"the spool {self._folder} is full; the oldest steps that were not sent are dropped")
        self._spool = None  # closes its files: they can be sent to their ends

    def _spool_row(self, run: HostedRun, when: float, fields: dict[str, Any] | None) -> None:
        try:
            if run.number is None:
                run.number = _core.spool_begin(self._spool, run.begin_line(when))
            if fields is not None:
                is_end = fields["event"] == "finish"
                _core.spool_write(self._spool, run.number, _line(when, fields), is_end)
                if is_end:
                    self._runs.discard(run)
        except MemScaleError as error:
            self._tell(f"{error}; steps are lost")

    # -- the thread that sends -----------------------------------------------------------------

    def _send_spool(self) -> None:
        while True:
            is_last = self._is_spooled.is_set()
            try:
                _core.push_add_spool(self._push, self._folder, self._own)
            except MemScaleError as error:
                self._tell(str(error))
            state, wait_s, reason = send_due(self._push, self._server, self._has_time)
            self._tell_news(state, reason)
            if state == "stopped" or not self._has_time() or (is_last and not self._may_wait(state, wait_s)):
                break
            self._pause(is_last, wait_s)
        self._server.close()

    def _has_time(self) -> bool:
        return time.monotonic() < self._until

    def _may_wait(self, state: str, wait_s: float) -> bool:
        """Whether something is left that could still be sent before the end."""
        return state == "wait" and time.monotonic() + wait_s < self._until

    def _pause(self, is_last: bool, wait_s: float) -> None:
        if is_last:
            time.sleep(wait_s)
        elif self._is_ending.is_set():
            self._is_spooled.wait(0.1)
        else:
            self._is_ending.wait(_SEND_EVERY_S)

    def _tell_news(self, state: str, reason: str) -> None:
        for line in _core.push_news(self._push):
            self._tell(line)
        if state == "stopped":
            self.is_open = False
            self._rows.clear()
            self._tell(f"{reason}; nothing more is sent, and what was not sent stays in {self._folder}")
        if state != "wait":
            self._failing_since = None
            return
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        if time.monotonic() - self._failing_since > _TELL_AFTER_S:
            self._tell(f"{self._server.address} does not take the run; steps wait in {self._folder}")
