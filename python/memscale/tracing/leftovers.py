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
    _remove(found, _DEPTH, {id(found)}, stuck)
    return stuck


def _is_of(item: Any, mode: FakeTensorMode) -> bool:
    return issubclass(type(item), FakeTensor) and getattr(item, "fake_mode", None) is mode


def _remove(things: list[Any], depth: int, ours: set[int], stuck: list[str]) -> None:
    """Removes `things` from what holds them, but for our own lists, whose identities are `ours`. One search of the
    process's objects serves all things, because it takes tens of milliseconds."""
    if not things:
        return
    holders = [holder for holder in gc.get_referrers(*things) if not isinstance(holder, types.FrameType)]
    ours |= {id(holders)}
    wrappers: list[Any] = []
    ours |= {id(wrappers)}
    removed = {id(thing) for thing in things}
    for holder in holders:
        if id(holder) in ours:
            continue
        if isinstance(holder, _WRAPPERS) and depth > 0:
            wrappers.append(holder)
        elif not _remove_from(holder, removed):
            stuck.append(type(holder).__qualname__)
    _remove(wrappers, depth - 1, ours, stuck)


def _remove_from(holder: Any, removed: set[int]) -> bool:
    """Removes what has these identities from `holder`; returns whether that is possible."""
    if isinstance(holder, (list, deque)):
        kept = [item for item in holder if id(item) not in removed]
        holder.clear()
        holder.extend(kept)
    elif isinstance(holder, set):
        holder.difference_update([item for item in holder if id(item) in removed])
    elif isinstance(holder, functools._lru_cache_wrapper):
        holder.cache_clear()
    elif isinstance(holder, types.CellType):
        holder.cell_contents = None
    elif isinstance(holder, dict):
        _forget_values(holder, removed)
    elif isinstance(getattr(holder, "__dict__", None), dict):
        return _forget_attributes(vars(holder), removed)
    else:
        return False
    return True


def _forget_values(holder: dict[Any, Any], removed: set[int]) -> None:
    """Removes entries of a dictionary. Attributes of an object become None, because code relies on their names."""
    owner = any(getattr(user, "__dict__", None) is holder for user in gc.get_referrers(holder))
    if owner:
        _forget_attributes(holder, removed)
    else:
        for key in [key for key, value in holder.items() if id(value) in removed or id(key) in removed]:
            del holder[key]


def _forget_attributes(attributes: dict[str, Any], removed: set[int]) -> bool:
    names = [name for name, value in attributes.items() if id(value) in removed]
    attributes.update(dict.fromkeys(names))
    return bool(names)
