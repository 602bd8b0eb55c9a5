"""The cache of keys and values that models of transformers make by default, even in training.

In training nothing reads the cache, and it keeps every layer's keys and values alive through the
step. Profiler, verification and executor therefore run such models with ``use_cache=False``. This
file has the rule. At some small shapes an unwrapped run with the cache has other last bits; the
wrapped run has those of the unwrapped run with ``use_cache=False``.

Layers of linear attention and state-space models compute through their cache: without it, their
gradients differ in the last bits. Their cache is left on, so such a layer can't be replayed, because
a replay would change the cache. Only the caller may pass ``use_cache=False``.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["computes_with_cache", "makes_cache", "without_cache"]

# Layer types in the configurations of transformers whose cache holds states instead of keys and values.
_TYPES_WITH_STATES = frozenset(("linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding", "recurrent"))


def computes_with_cache(module: torch.nn.Module) -> bool:
    """Whether layers of the model compute differently with a cache."""
    config = getattr(module, "config", None)
    text = getattr(config, "get_text_config", None)
    types = getattr(text() if callable(text) else config, "layer_types", None)
    return isinstance(types, (list, tuple)) and not _TYPES_WITH_STATES.isdisjoint(types)


def makes_cache(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a forward with these arguments would make a cache by default."""
    if not getattr(getattr(module, "config", None), "use_cache", False):
        return False
    if kwargs.get("use_cache") is not None or kwargs.get("past_key_values") is not None:
        return False
    inner = getattr(module, "get_base_model", None)  # an adapter around the model
    names = list(inspect.signature((inner() if callable(inner) else module).forward).parameters)
    return "use_cache" in names and names.index("use_cache") >= len(args)


def without_cache(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments, with ``use_cache=False`` if the forward would make a cache that nothing reads."""
    is_idle = makes_cache(module, args, kwargs) and not computes_with_cache(module)
    return {**kwargs, "use_cache": False} if is_idle else kwargs
