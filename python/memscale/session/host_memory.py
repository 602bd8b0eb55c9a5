"""The process's tensor memory while something is wrapped on a CPU host.

Thin: installs the allocator of `hostmem` for one user, gives it the ceiling of the plan
in force, and gives it back. See `memscale/hostmem.h` for what it does.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

from .. import _core

_log = logging.getLogger("memscale")


class HostMemory:
    """One user's share in the allocator of CPU tensors.

    Must be installed before the process's baseline is measured. A share that is collected, with a model
    that nobody detached, is given back. Not thread-safe.
    """

    def __init__(self) -> None:
        self._end: weakref.finalize[Any, Any] | None = None

    def install(self) -> None:
        """Takes over the allocator; a fall-back is logged by C."""
        import torch  # noqa: F401  the library whose slots are taken has to be loaded

        if self._end is None:
            means = _core.hostmem_install()
            self._end = weakref.finalize(self, _give_back)
            self._end.atexit = False
            _log.debug("memory of CPU tensors: %s", means)

    def set_ceiling(self, ceiling_bytes: int) -> None:
        """Bounds live and cached tensor memory together, by C's number."""
        if self._end is not None:
            _core.hostmem_set_ceiling(ceiling_bytes)

    def uninstall(self) -> None:
        """Gives the allocator back; tensors that live keep their memory."""
        if self._end is not None:
            self._end()
            self._end = None


def _give_back() -> None:
    _core.hostmem_uninstall()
    _core.hostmem_trim(0, True)
