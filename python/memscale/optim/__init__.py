"""Optimizers that update parameters in C: `AdamW` and `AdamW8bit`.

They also work on a model that is not wrapped. torch is imported when a name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["AdamW", "AdamW8bit"]

if TYPE_CHECKING:
    from .adamw import AdamW, AdamW8bit


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(".adamw", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
