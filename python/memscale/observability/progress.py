"""Shows a run's progress. ``MEMSCALE_PROGRESS=1`` or `Executor.show_progress()` enables it.

A terminal shows one line that is rewritten in place. Other streams get a line every few seconds.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO

from .. import _core

__all__ = ["Progress", "progress_from_environment"]

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Writes to `stream`, or to standard error if it is None. After a failure nothing more is written."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        self._written_at = float("-inf")
        self._is_open_line = False

    def step(self, history: Any) -> None:
        """A step was added to the history."""
        stream = self._stream
        if stream is None:
            return
        try:
            if stream.isatty():
                stream.write(f"\r\x1b[Kmemscale: {_core.progress_line(history)}")
                self._is_open_line = True
            elif time.monotonic() - self._written_at >= _SECONDS_BETWEEN_LINES:
                self._written_at = time.monotonic()
                stream.write(f"memscale: {_core.progress_line(history)}\n")
            stream.flush()
        except (OSError, ValueError):
            self._stream = None

    def close(self) -> None:
        """Ends the line on a terminal."""
        if self._is_open_line and self._stream is not None:
            self._is_open_line = False
            try:
                self._stream.write("\n")
            except (OSError, ValueError):
                self._stream = None


def progress_from_environment() -> Progress | None:
    """A progress line if ``MEMSCALE_PROGRESS`` requests one."""
    return Progress() if os.environ.get("MEMSCALE_PROGRESS", "") not in ("", "0") else None
