"""The environment of processes that tests start, and the number of a process's threads."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

# The kernel's PF_EXITING and PF_IO_WORKER.
_NO_THREAD = 0x4 | 0x10


def environment_of_tests(**values: str) -> dict[str, str]:
    """An environment in which Python imports the tests' shared modules, and the same memscale as this process."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, **values}


def thread_count() -> int:
    """Threads of this process, without the kernel's own and ended ones: an entry disappears a little after its
    thread was joined."""
    count = 0
    for stat in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            flags = int(stat.read_text().rpartition(")")[2].split()[6])
            count += not flags & _NO_THREAD
    return count
