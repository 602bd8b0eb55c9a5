"""Tells when the frame of a call is gone, also if no hook runs after the call.

torch runs no hooks after a KeyboardInterrupt. What memscale has begun for a forward (a tape, a loss mode, autocast)
then ends with the frame of torch that called it: an object in the frame's `f_trace` dies with it. Python does not call
that object unless the thread is traced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["is_around", "watch"]


class _Sentinel:
    """Dies with a frame."""

    __slots__ = ("_address", "_ended")

    def __init__(self, address: list[int], ended: Callable[[list[int]], None]) -> None:
        self._address = address
        self._ended = ended

    def __call__(self, *_: Any) -> _Sentinel:
        """A trace function that does nothing; a debugger that starts inside the call may call it."""
        return self

    def __del__(self, getframe: Callable[[], FrameType] = sys._getframe) -> None:
        if sys is None or sys.is_finalizing():
            return  # the interpreter has taken the module's names away
        frame: FrameType | None = getframe()
        while frame is not None:
            if id(frame) == self._address[0]:
                return  # a debugger has taken its place
            frame = frame.f_back
        self._ended(self._address)
        self._address[0] = 0


def watch(frame: FrameType, ended: Callable[[list[int]], None]) -> Any:
    """Returns a list that holds the frame's address, by which C knows the frame. When the frame dies, `ended(address)`
    is called and the address becomes 0. A frame that is traced is not watched: it is returned itself."""
    if sys.gettrace() is not None or frame.f_trace is not None:
        return frame
    address = [id(frame)]
    frame.f_trace = _Sentinel(address, ended)
    return address


def is_around(watched: Any) -> bool:
    """Whether the frame of which `watch()` returned `watched` is on this thread's stack."""
    address = watched[0] if type(watched) is list else id(watched)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame) != address:
        frame = frame.f_back
    return frame is not None
