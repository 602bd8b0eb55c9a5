"""The cache of keys and values that models of transformers make unasked, in training too.

It keeps every layer's keys and values alive through the step for nobody. Profiler,
verification and executor run such models with ``use_cache=False``, by the rule here.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["makes_cache", "without_cache"]


def makes_cache(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a forward with these arguments would make a cache that it was not asked for."""
    if not getattr(getattr(module, "config", None), "use_cache", False):
        return False
    if kwargs.get("use_cache") is not None or kwargs.get("past_key_values") is not None:
        return False
    inner = getattr(module, "get_base_model", None)  # an adapter around the model
    names = list(inspect.signature((inner() if callable(inner) else module).forward).parameters)
    return "use_cache" in names and names.index("use_cache") >= len(args)


def without_cache(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments, with ``use_cache=False`` where a cache would be made."""
    return {**kwargs, "use_cache": False} if makes_cache(module, args, kwargs) else kwargs
