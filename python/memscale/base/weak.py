"""Methods that do not keep their object alive."""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["weak_method"]


def weak_method(owner: Any, name: str) -> Any:
    """The method `name` of `owner`. The result does not keep `owner` alive, and does nothing once it is gone."""
    reference = weakref.ref(owner)

    def call(*args: Any) -> Any:
        alive = reference()
        return getattr(alive, name)(*args) if alive is not None else None

    return call
