"""The documented place of `Executor`, which lives in `memscale.execution.executor`."""

from __future__ import annotations

from ..execution.executor import Executor

__all__ = ["Executor"]
