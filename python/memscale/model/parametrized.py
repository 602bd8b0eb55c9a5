"""Values of parametrized weights that `torch.nn.utils.parametrize.cached()` keeps.

Inside that context a parametrized weight is computed at its first use and kept until the
context ends, usually before backward. A layer that runs again has to find of its weights what
its call found, and compute what its call computed: other tensors would be saved. What a trace or
a rehearsal computes must not be found by the caller's step. Used by `memscale.execution.module_state`
and `memscale.model.isolation`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils import parametrize

__all__ = ["CachedWeights", "without_cached_weights"]

_Cache = dict[tuple[int, str], torch.Tensor | None]


class CachedWeights:
    """What the cache holds at one moment, and whether it is on.

    All of it, not a layer's part: a deep copy's weights lie under the address of the module that was
    copied.
    """

    __slots__ = ("_depth", "_found")

    def __init__(self) -> None:
        self._depth = parametrize._cache_enabled
        self._found: _Cache = {key: _apart(value) for key, value in parametrize._cache.items()}

    def put(self, undo: Any) -> None:
        """The cache is as it was taken, until `undo` puts back what is now."""
        _replace(undo, self._depth, dict(self._found))


def _apart(value: torch.Tensor | None) -> torch.Tensor | None:
    """The same values in no graph: who holds them must not hold the graph that made them."""
    return value if value is None or value.is_leaf else value.detach().requires_grad_(value.requires_grad)


def without_cached_weights(undo: Any) -> None:
    """A cache of its own, empty, as far as there is one now; until `undo` puts back that one."""
    _replace(undo, parametrize._cache_enabled, {})


def _replace(undo: Any, depth: int, cache: _Cache) -> None:
    undo.slot(vars(parametrize), "_cache_enabled")
    undo.slot(vars(parametrize), "_cache")
    parametrize._cache_enabled, parametrize._cache = depth, cache
