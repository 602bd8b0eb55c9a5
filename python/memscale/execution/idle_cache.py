"""Passes `use_cache=False` to a model that would make a cache in training, and tells the user. `model/caches.py` has
the rule and the reasons."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..base.walk import is_training
from ..model.caches import computes_with_cache, makes_cache, without_cache

if TYPE_CHECKING:
    import torch

    from .notices import Notices

__all__ = ["without_idle_cache"]


def without_idle_cache(
    notices: Notices, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """`kwargs` with ``use_cache=False`` if the model would make a cache of its own; otherwise None."""
    if not makes_cache(module, args, kwargs) or not is_training(module):
        return None
    name = type(module).__name__
    if computes_with_cache(module):
        notices.say(
            "use_cache of states",
            logging.INFO,
            f"{name} computes through the states in its cache, so the cache stays on: without it, "
            "gradients would differ in their last bits. If you pass use_cache=False, its layers can be recomputed",
        )
        return None
    notices.say(
        "use_cache",
        logging.INFO,
        f"{name} would collect past_key_values in training; use_cache=False is passed while it is wrapped",
    )
    return without_cache(module, args, kwargs)
