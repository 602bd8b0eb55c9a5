"""The documented places of the stages' classes, as `memscale.core.profiler.MemoryProfiler`.

The classes are defined in the packages of their stages (`memscale.tracing`, `planning`, `execution`). Nothing inside
memscale imports from here. Names are imported at their first use, so that `import memscale` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Config", "DecisionEngine", "Executor", "MemoryProfiler"]

_HOMES = {
    "Config": "memscale.config",
    "DecisionEngine": "memscale.planning.decision_engine",
    "Executor": "memscale.execution.executor",
    "MemoryProfiler": "memscale.tracing.profiler",
}

if TYPE_CHECKING:
    from ..config import Config
    from ..execution.executor import Executor
    from ..planning.decision_engine import DecisionEngine
    from ..tracing.profiler import MemoryProfiler


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
