"""What memscale itself does on the calling thread: tracing a model, or running a layer again.

Asked by everything that is put on a model: while memscale runs the model for its own purposes, hooks, modes and tiles
stand aside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_replaying", "is_tracing", "replaying", "standing_aside"]


class _OnThread(threading.local):
    traces = 0
    replays = 0


_here = _OnThread()


def is_tracing() -> bool:
    """Whether this thread is inside a static trace."""
    return _here.traces > 0


def is_replaying() -> bool:
    """Whether this thread is running a layer again in backward."""
    return _here.replays > 0


@contextmanager
def standing_aside() -> Iterator[None]:
    """Within, hooks on a model that this thread runs stand aside, as in a trace."""
    _here.traces += 1
    try:
        yield
    finally:
        _here.traces -= 1


@contextmanager
def replaying() -> Iterator[None]:
    """Within, this thread is running a layer again."""
    _here.replays += 1
    try:
        yield
    finally:
        _here.replays -= 1
