"""Calls of memscale's that autograd makes at the end of a backward.

The executor and the observed steps ask for them; nobody else talks to autograd's queue. On a GPU, one of autograd's own
threads may be the last to hold such a call, and drops it some microseconds after `backward()` has returned. If the
interpreter ends in between, that thread ends inside a destructor, and C++ aborts the process ("terminate called without
an active exception"). So the end of the process waits until each call is dropped.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable

__all__ = ["after_backward", "in_backward"]

_LONGEST_WAIT_S = 5.0  # what is still held then, is held by something else than a thread that is about to drop it


class _Call:
    """One call that is queued. Autograd holds it; this module only watches it."""

    __slots__ = ("__weakref__", "_function")

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __call__(self) -> None:
        self._function()


_held: set[weakref.ref[_Call]] = set()


def after_backward(function: Callable[[], None]) -> None:
    """Calls `function` once the running backward has ended, on the thread that began it or on one of autograd's.

    Raises RuntimeError outside a backward.
    """
    import torch

    call = _Call(function)
    torch.autograd.Variable._execution_engine.queue_callback(call)
    _held.add(weakref.ref(call, _held.discard))


def in_backward() -> bool:
    """Whether a backward runs on this thread."""
    import torch  # the session is imported without it

    return torch._C._current_graph_task_id() != -1


def _wait_until_dropped() -> None:
    end = time.monotonic() + _LONGEST_WAIT_S
    held = list(_held)  # a daemon thread that trains on always queues another
    while any(call() is not None for call in held) and time.monotonic() < end:
        time.sleep(0.001)


atexit.register(_wait_until_dropped)
os.register_at_fork(after_in_child=_held.clear)  # a child has none of autograd's threads
