"""The allocators that an expert preloads in place of glibc's, which unmodified training is compared under too.

They are other projects' libraries (Debian: libtcmalloc-minimal4, libjemalloc2, libmimalloc2.0). What is not
installed is left out.
"""

from __future__ import annotations

from ctypes.util import find_library

__all__ = ["installed"]

_LIBRARIES = {"tcmalloc": "tcmalloc_minimal", "jemalloc": "jemalloc", "mimalloc": "mimalloc"}


def installed() -> dict[str, str]:
    """The libraries to preload (a value of LD_PRELOAD), by the names of their allocators."""
    found = {name: find_library(library) for name, library in _LIBRARIES.items()}
    return {name: path for name, path in found.items() if path is not None}
