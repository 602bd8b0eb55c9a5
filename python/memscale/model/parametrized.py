"""Values of parametrized weights that `torch.nn.utils.parametrize.cached()` keeps.

Inside that context a parametrized weight is computed at its first use and kept until the
context ends, usually before backward. A layer that runs again has to find of its weights what
its call found, and compute what its call computed: other tensors would be saved. What a trace or
a rehearsal computes must not be found by the caller's step. Used by `memscale.execution.module_state`
and `memscale.model.isolation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The cache is as it was taken; afterwards as it is now."""
        with _replaced(self._depth, dict(self._found)):
            yield


def _apart(value: torch.Tensor | None) -> torch.Tensor | None:
    """The same values in no graph: who holds them must not hold the graph that made them."""
    return value if value is None or value.is_leaf else value.detach().requires_grad_(value.requires_grad)


@contextmanager
def without_cached_weights() -> Iterator[None]:
    """A cache of its own, empty, as far as there is one now."""
    with _replaced(parametrize._cache_enabled, {}):
        yield


@contextmanager
def _replaced(depth: int, cache: _Cache) -> Iterator[None]:
    now = parametrize._cache_enabled, parametrize._cache
    parametrize._cache_enabled, parametrize._cache = depth, cache
    try:
        yield
    finally:
        parametrize._cache_enabled, parametrize._cache = now
