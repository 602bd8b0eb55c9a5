"""Sends telemetry events. It is off unless the user enables it; no other module sends anything.

An event holds classes and buckets (docs/formats/telemetry.schema.json), which C derives from the plan.
`record()` only adds to a bounded queue. A daemon thread makes the event and posts it, with short
timeouts, and gives up for good after a few failures. The caller gets no exception and never waits.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import queue
import sys
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

from .. import _core

__all__ = ["architecture_of", "disable_telemetry", "enable_telemetry", "is_enabled", "record"]

_log = logging.getLogger("memscale")

_TIMEOUT_SECONDS = 3.0
_FAILURES_MOST = 3
_QUEUE_MOST = 64
_TRUE = {"1", "true", "yes", "on"}


class _Sender:
    """A queue and the thread that empties it."""

    def __init__(self, endpoint: str) -> None:
        self._target = urllib.parse.urlsplit(endpoint)
        self._queue: queue.Queue[Callable[[], str] | None] = queue.Queue(_QUEUE_MOST)
        threading.Thread(target=self._run, name="memscale-telemetry", daemon=True).start()

    def put(self, make: Callable[[], str] | None) -> None:
        with contextlib.suppress(queue.Full):  # the event is lost
            self._queue.put_nowait(make)

    def _run(self) -> None:
        failures = 0
        while failures < _FAILURES_MOST and (make := self._queue.get()) is not None:
            try:
                self._post(make().encode())
                failures = 0
            except Exception:  # no exception leaves this thread
                failures += 1

    def _post(self, body: bytes) -> None:
        kind = http.client.HTTPSConnection if self._target.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._target.hostname or "", self._target.port, timeout=_TIMEOUT_SECONDS)
        try:
            headers = {"Content-Type": "application/json", "User-Agent": "memscale"}
            place = urllib.parse.urlunsplit(("", "", self._target.path or "/", self._target.query, ""))
            connection.request("POST", place, body, headers)
            status = connection.getresponse().status
            if status >= 400:
                raise OSError(f"status {status}")
        finally:
            connection.close()


_lock = threading.Lock()
_state: dict[str, Any] = {"chosen": None, "sender": None}


def enable_telemetry(endpoint: str | None = None) -> None:
    """Enables telemetry events in this process.

    Args:
        endpoint: the URL to which events are posted; None for ``MEMSCALE_TELEMETRY_ENDPOINT``. If that
            is not set either, nothing is sent.

    Raises:
        TypeError, ValueError: `endpoint` is not an http or https URL.
    """
    if endpoint is not None and not isinstance(endpoint, str):
        raise TypeError(f"endpoint must be a str or None, not {type(endpoint).__qualname__}")
    wanted = endpoint if endpoint is not None else os.environ.get("MEMSCALE_TELEMETRY_ENDPOINT")
    if wanted and not _is_url(wanted):
        raise ValueError(f"endpoint must be an http or https URL, not {wanted!r}")
    with _lock:
        _stop()
        _state["chosen"] = True
        _state["sender"] = _Sender(wanted) if wanted else None
    if not wanted:
        _log.info("telemetry: no endpoint is named (MEMSCALE_TELEMETRY_ENDPOINT); nothing is sent")


def disable_telemetry() -> None:
    """Ends telemetry in this process, even if the environment enables it. Drops the events in the queue."""
    with _lock:
        _stop()
        _state["chosen"] = False


def _stop() -> None:
    sender, _state["sender"] = _state["sender"], None
    if sender is not None:
        sender.put(None)


def _is_url(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def is_enabled() -> bool:
    """Whether events are sent. The last call of `enable_telemetry()` or `disable_telemetry()` decides; if
    neither was called, ``MEMSCALE_TELEMETRY=1`` does."""
    if _state["chosen"] is None:
        asked = os.environ.get("MEMSCALE_TELEMETRY", "").strip().lower() in _TRUE
        if not asked:
            return False
        try:
            enable_telemetry()
        except ValueError as error:
            _log.warning("telemetry: %s; nothing is sent", error)
            disable_telemetry()
    return bool(_state["chosen"]) and _state["sender"] is not None


def record(
    event: str,
    outcome: str,
    architecture: str,
    parameters: int,
    documents: tuple[str | None, str | None, str | None],
    measured_peak_bytes: int | None = None,
) -> None:
    """Adds an event to the queue if telemetry is on. `documents` are hardware, config and plan."""
    if not is_enabled():
        return
    peak = 2**64 - 1 if measured_peak_bytes is None else measured_peak_bytes
    sender = _state["sender"]
    if sender is not None:
        sender.put(lambda: _core.telemetry_event(event, architecture, outcome, parameters, peak, *documents))


def architecture_of(model: Any) -> str:
    """The class of a model's architecture, judged by its configuration and modules; "other" if in doubt."""
    nn = getattr(sys.modules.get("torch"), "nn", None)
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return "encoder_decoder"
    if getattr(config, "num_attention_heads", None) is not None:
        can_generate = getattr(model, "can_generate", None)
        return "decoder" if callable(can_generate) and can_generate() else "encoder"
    if nn is None or not isinstance(model, nn.Module):
        return "other"
    kinds = (
        ("attention", (nn.MultiheadAttention,)),
        ("recurrent", (nn.RNNBase, nn.RNNCellBase)),
        ("convolutional", (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    )
    modules = list(model.modules())
    return next((name for name, types in kinds if any(isinstance(m, types) for m in modules)), "other")
