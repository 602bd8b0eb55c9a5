"""Observes whether a loop scales losses with a GradScaler or clips gradients.

Functions of torch are replaced while there are listeners, and restored after the last listener is
gone. A listener's exception reaches the loop.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["GradientUse", "Listener", "listen", "tell_of_scaling"]

# Functions of torch.nn.utils.clip_grad that change gradients; each of its clipping functions is or calls one.
_CLIPPING = ("_clip_grads_with_norm_", "clip_grad_value_")
_SCALING = "scale"  # a method of torch.amp.GradScaler

_listeners: weakref.WeakSet[Any] = weakref.WeakSet()
_originals: dict[str, Callable[..., Any]] = {}


class Listener(Protocol):
    """Receives both events."""

    def loss_is_scaled(self) -> None:
        """A loss is about to be scaled, by a GradScaler or for one of our own FP16 forwards."""

    def gradients_are_clipped(self, parameters: list[torch.Tensor]) -> None:
        """The gradients of `parameters` are about to be clipped to a finite bound."""


class Grouped(Protocol):
    """An optimizer; only its groups are read."""

    param_groups: list[dict[str, Any]]


class GradientUse:
    """Whether all gradients of an optimizer were used at once before a step."""

    def __init__(self, optimizer: Grouped) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.needs_all = False
        listen(self)

    def loss_is_scaled(self) -> None:
        self.needs_all = True

    def gradients_are_clipped(self, parameters: list[torch.Tensor]) -> None:
        optimizer = self._optimizer()
        if optimizer is not None and not self.needs_all:
            clipped = set(map(id, parameters))
            self.needs_all = any(id(p) in clipped for group in optimizer.param_groups for p in group["params"])


def listen(listener: Listener) -> None:
    """Reports both events to `listener` while it lives."""
    import torch.nn.utils.clip_grad as module

    _listeners.add(listener)
    weakref.finalize(listener, _restore_unheard)
    for name in _CLIPPING:
        original = getattr(module, name, None)
        if original is not None and name not in _originals:
            _originals[name] = original
            _set_everywhere(name, original, _telling_of_clipping(original))
    if _SCALING not in _originals:
        _originals[_SCALING] = torch.amp.GradScaler.scale
        torch.amp.GradScaler.scale = _telling_of_scaling(torch.amp.GradScaler.scale)  # type: ignore[method-assign]


def tell_of_scaling(by: Listener | None = None) -> None:
    """Reports to every listener except `by` that a loss is about to be scaled."""
    for listener in list(_listeners):
        if listener is not by:
            listener.loss_is_scaled()


def _restore_unheard() -> None:
    import torch.nn.utils.clip_grad as module

    if list(_listeners):
        return
    scaling = _originals.pop(_SCALING, None)
    if scaling is not None and getattr(torch.amp.GradScaler.scale, "__wrapped__", None) is scaling:
        torch.amp.GradScaler.scale = scaling  # type: ignore[method-assign, assignment]
    while _originals:
        name, original = _originals.popitem()
        _set_everywhere(name, getattr(module, name), original)


def _set_everywhere(name: str, old: Any, new: Any) -> None:
    """Replaces a function in the modules of torch that have it under `name` or its public name."""
    import torch.nn.utils as package
    import torch.nn.utils.clip_grad as module

    for place in (module, package):
        for known in (name, name.lstrip("_")):
            if getattr(place, known, None) is old:
                setattr(place, known, new)


def _telling_of_clipping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        # With an infinite bound the call only computes the norm, as Trainers do for their log.
        bound = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value", 0.0))
        if float(bound) < math.inf:
            for listener in list(_listeners):
                listener.gradients_are_clipped(given)
        return original(given, *args, **kwargs)

    return clip


def _telling_of_scaling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        if self.is_enabled():
            tell_of_scaling()
        return original(self, outputs)

    return scale
