"""Times steps on a device by events in its queue, because the host runs ahead of it: between two boundaries the host
may only have queued the work. An event is read once the device has reached it; nothing waits for one. So a step's time
is known some steps later."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from ..device import kind_of

__all__ = ["StepClock"]

# Steps that wait for the device. A host that is further ahead leaves steps untimed.
_WAITING_MOST = 16


class StepClock:
    """The clock of one executor, which calls it at the boundaries of steps, on the thread of the forward or of the
    optimizer. Does nothing for the host, whose time C measures."""

    def __init__(self) -> None:
        self._begun: Any = None
        self._waiting: deque[tuple[int, Any, Any]] = deque()

    def begin(self, device: torch.device) -> None:
        """A training forward begins; the first one begins the step."""
        if self._begun is None:
            self._begun = _event(device)

    def end(self, step: int) -> None:
        """Step `step` has ended: its work is queued."""
        begun, self._begun = self._begun, None
        if begun is not None and len(self._waiting) < _WAITING_MOST:
            self._waiting.append((step, begun, _event(begun.device)))

    def forget(self) -> None:
        """The plan changes: earlier steps say nothing about it."""
        self._begun = None
        self._waiting.clear()

    def correct(self, seen: dict[str, Any]) -> dict[str, Any]:
        """The observation of a step with the time of the oldest step that was not told yet, in place of the host's:
        `time_lag` says how many steps ago it ended. Without a time if the device has reached none."""
        seen = {key: value for key, value in seen.items() if key != "step_ns"}
        if self._waiting and self._waiting[0][2].query():
            step, begun, ended = self._waiting.popleft()
            seen["step_ns"] = max(1, int(begun.elapsed_time(ended) * 1e6))
            seen["time_lag"] = seen["step"] - step
        return seen


def _event(device: torch.device) -> Any:
    """An event behind all work that is queued on the device's current stream; None for the host."""
    if kind_of(device).is_host or kind_of(device).is_capturing():
        return None
    event = torch.Event(device, enable_timing=True)
    event.record(torch.accelerator.current_stream(device))
    return event
