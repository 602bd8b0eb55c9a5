"""The cache of keys and values that models of transformers make unasked, in training too.

It keeps every layer's keys and values alive through the step for nobody. Profiler,
verification and executor run such models with ``use_cache=False``, by the rule here.

Layers of linear attention and state-space models compute through their cache: with it they
go other ways, whose gradients differ in their last bits. Their cache stays, and with it
what running such a layer again would change; ``use_cache=False`` is the caller's to say.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["computes_with_cache", "makes_cache", "without_cache"]

# Types of layers, by the configurations of transformers, whose cache holds states instead of
# keys and values.
_TYPES_WITH_STATES = frozenset(("linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding", "recurrent"))


def computes_with_cache(module: torch.nn.Module) -> bool:
    """Whether layers of the model compute otherwise with a cache than without."""
    config = getattr(module, "config", None)
    text = getattr(config, "get_text_config", None)
    types = getattr(text() if callable(text) else config, "layer_types", None)
    return isinstance(types, (list, tuple)) and not _TYPES_WITH_STATES.isdisjoint(types)


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
    """The keyword arguments, with ``use_cache=False`` where a cache would be made for nobody."""
    is_idle = makes_cache(module, args, kwargs) and not computes_with_cache(module)
    return {**kwargs, "use_cache": False} if is_idle else kwargs
