"""How long tests wait. Limits are for hangs: no busy machine, and none that stands still for a
while, needs as long. No test says how fast something is."""

from __future__ import annotations

import time
from collections.abc import Callable

HANG_SECONDS = 600.0


def comes_true(is_so: Callable[[], object]) -> bool:
    """Waits until `is_so()` is true; whether it became so."""
    until = time.monotonic() + HANG_SECONDS
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True
