"""Removes tensors of a trace from the caller's containers.

A forward, or a hook on it, may append results to a list of its own: features, statistics, auxiliary
losses. In a trace it appends fake tensors, which must never reach the real step. `isolation` removes
them from modules; this file removes them from everything else. The profiler uses it after a failed trace, and if
tensors of a trace are still alive at its end.
"""

from __future__ import annotations

import functools
import gc
import types
from collections import deque
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

__all__ = ["take_back"]

_DEPTH = 3
"""A tensor is found inside at most this many nested tuples."""

_WRAPPERS = (tuple, frozenset)


def take_back(mode: FakeTensorMode) -> list[str]:
    """Removes every live fake tensor of `mode` from the containers that hold it.

    Items of lists, deques, sets and dictionaries are removed, and caches of functions are cleared.
    Attributes and captured variables become None. Frames are left alone, because the frames of a failed
    trace end with its exception.

    Returns:
        The types of the holders from which nothing could be removed.
    """
    gc.collect()
    found = [item for item in gc.get_objects() if _is_of(item, mode)]
    stuck: list[str] = []
    while found:
        _remove(found.pop(), _DEPTH, [id(found)], stuck)
    return stuck


def _is_of(item: Any, mode: FakeTensorMode) -> bool:
    return issubclass(type(item), FakeTensor) and getattr(item, "fake_mode", None) is mode


def _remove(thing: Any, depth: int, ours: list[int], stuck: list[str]) -> None:
    for holder in gc.get_referrers(thing):
        if id(holder) in ours or isinstance(holder, types.FrameType):
            continue
        if isinstance(holder, _WRAPPERS) and depth > 0:
            _remove(holder, depth - 1, ours, stuck)
        elif not _remove_from(holder, thing):
            stuck.append(type(holder).__qualname__)


def _remove_from(holder: Any, thing: Any) -> bool:
    if isinstance(holder, (list, deque)):
        kept = [item for item in holder if item is not thing]
        holder.clear()
        holder.extend(kept)
    elif isinstance(holder, set):
        holder.discard(thing)
    elif isinstance(holder, functools._lru_cache_wrapper):
        holder.cache_clear()
    elif isinstance(holder, types.CellType):
        holder.cell_contents = None
    elif isinstance(holder, dict):
        _forget_values(holder, thing)
    elif isinstance(getattr(holder, "__dict__", None), dict):
        return _forget_attributes(vars(holder), thing)
    else:
        return False
    return True


def _forget_values(holder: dict[Any, Any], thing: Any) -> None:
    """Removes entries of a dictionary. Attributes of an object become None, because code relies on their names."""
    owner = any(getattr(user, "__dict__", None) is holder for user in gc.get_referrers(holder))
    if owner:
        _forget_attributes(holder, thing)
    else:
        for key in [key for key, value in holder.items() if value is thing or key is thing]:
            del holder[key]


def _forget_attributes(attributes: dict[str, Any], thing: Any) -> bool:
    names = [name for name, value in attributes.items() if value is thing]
    attributes.update(dict.fromkeys(names))
    return bool(names)
