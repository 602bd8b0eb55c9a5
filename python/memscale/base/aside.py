"""Tells whether memscale itself runs the model on the calling thread, in a trace or in a replay of a layer.

All hooks, modes and tiles on a model check this, and do nothing while memscale runs the model for its own
purposes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar, cast

from .. import _core

__all__ = ["is_replaying", "is_tracing", "replaying", "standing_aside"]


Result = TypeVar("Result")


class _OnThread(threading.local):
    traces = 0
    replays = 0


_here = _OnThread()


def is_tracing() -> bool:
    """Whether this thread is inside a static trace."""
    return _here.traces > 0


def is_replaying() -> bool:
    """Whether this thread is replaying a layer in backward."""
    return _here.replays > 0


def standing_aside(function: Callable[[], Result]) -> Result:
    """Calls `function()`; meanwhile hooks on models that this thread runs do nothing, as in a trace."""
    return cast(Result, _core.guarded(_standing_aside, function))


def _standing_aside(undo: _core.Undo, function: Callable[[], Result]) -> Result:
    undo.slot(_here.__dict__, "traces")
    _here.traces += 1
    return function()


def replaying(undo: _core.Undo) -> None:
    """Marks this thread as replaying a layer, until `undo` runs."""
    undo.slot(_here.__dict__, "replays")
    _here.replays += 1
