"""Techniques that also work in a loop whose model is not wrapped: the exact and the chunked loss head.

torch is imported at the first use of a name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["cross_entropy", "linear_cross_entropy"]

_HOMES = {"cross_entropy": ".loss_head", "linear_cross_entropy": ".linear_head"}

if TYPE_CHECKING:
    from .linear_head import linear_cross_entropy
    from .loss_head import cross_entropy


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
