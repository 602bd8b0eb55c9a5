"""Manages the process's tensor memory while a model is wrapped on a CPU host.

It installs the allocator of `hostmem` for one user, passes the ceiling of the plan in force
to it, and uninstalls it. `memscale/hostmem.h` documents the allocator.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from .. import _core

_log = logging.getLogger("memscale")


class HostMemory:
    """One user's share in the allocator of CPU tensors.

    It must be installed before the process's baseline is measured. If the model is collected without
    `detach()`, the share is released with it. Not thread-safe.
    """

    def __init__(self) -> None:
        self._end: weakref.finalize[Any, Any] | None = None

    def install(self) -> None:
        """Takes over the allocator. If it can't, C uses its fallback and logs that."""
        import torch  # noqa: F401  C replaces slots of torch's library, which must be loaded

        if self._end is None:
            means = _core.hostmem_install()
            self._end = weakref.finalize(self, _give_back)
            self._end.atexit = False
            _log.debug("memory of CPU tensors: %s", means)

    def set_ceiling(self, ceiling_bytes: int) -> None:
        """Limits the sum of live and cached tensor memory."""
        if self._end is not None:
            _core.hostmem_set_ceiling(ceiling_bytes)

    def uninstall(self) -> None:
        """Restores the previous allocator. Live tensors keep their memory."""
        if self._end is not None:
            self._end()
            self._end = None


def _give_back() -> None:
    _core.hostmem_uninstall()
    _core.hostmem_trim(0, True)
