"""Values of parametrized weights that `torch.nn.utils.parametrize.cached()` keeps.

Inside that context a parametrized weight is computed at its first use and kept until the context ends,
usually before backward. A replay of a layer has to find the weights that were cached at its call, and
compute the others, or it would save other tensors. The caller's step must not find weights that a trace
or a rehearsal computed. `memscale.execution.module_state` and `memscale.model.isolation` use this module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils import parametrize

__all__ = ["CachedWeights", "without_cached_weights"]

_Cache = dict[tuple[int, str], torch.Tensor | None]


class CachedWeights:
    """The content of the cache at one moment, and whether it is on.

    The whole cache is recorded, not one layer's part, because a deep copy's weights have keys with the
    address of the original module.
    """

    __slots__ = ("_depth", "_found")

    def __init__(self) -> None:
        self._depth = parametrize._cache_enabled
        self._found: _Cache = {key: _apart(value) for key, value in parametrize._cache.items()}

    def put(self, undo: Any) -> None:
        """Restores the recorded cache; `undo` restores the present one."""
        _replace(undo, self._depth, dict(self._found))


def _apart(value: torch.Tensor | None) -> torch.Tensor | None:
    """The same values without a graph, because the record must not keep a graph alive."""
    return value if value is None or value.is_leaf else value.detach().requires_grad_(value.requires_grad)


def without_cached_weights(undo: Any) -> None:
    """Empties the cache; `undo` restores the present content."""
    _replace(undo, parametrize._cache_enabled, {})


def _replace(undo: Any, depth: int, cache: _Cache) -> None:
    undo.slot(vars(parametrize), "_cache_enabled")
    undo.slot(vars(parametrize), "_cache")
    parametrize._cache_enabled, parametrize._cache = depth, cache
