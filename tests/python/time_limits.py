"""How long tests wait. Limits are for hangs only: even a busy machine, or one that stops for seconds, stays far below
them. No test measures speed."""

from __future__ import annotations

import time
from collections.abc import Callable

HANG_SECONDS = 600.0


def comes_true(is_so: Callable[[], object]) -> bool:
    """Waits until `is_so()` is true; returns whether it became true in time."""
    until = time.monotonic() + HANG_SECONDS
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True
