"""The documented place of `MemoryProfiler`, which lives in `memscale.tracing.profiler`."""

from __future__ import annotations

from ..tracing.profiler import MemoryProfiler

__all__ = ["MemoryProfiler"]
