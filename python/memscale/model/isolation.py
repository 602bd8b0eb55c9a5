"""Restores a model to its former state after other code ran on it.

Modules cache tensors in their forward, count calls and rebind buffers, and so do the objects that they
hold (configurations, caches). All attribute dictionaries and plain containers below a module are
recorded and restored, together with the random number generators and torch's global switches. The
profiler runs traces inside `isolated()`, and verification runs its steps there.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import logging
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from .. import _core
from ..base.environment import enable_hooks, without_modes
from ..base.settings import Switches
from ..device import RandomState
from .parametrized import without_cached_weights
from .quiet import hush
from .reach import Reach, has_content, note_generator, read_place, write_place
from .witness import Witness

__all__ = ["Snapshot", "isolated", "note_reach"]

_DEPTH = 4
"""Containers below a module's attributes are followed down to this depth."""

_LARGE = 4096
"""Containers with more items (data sets, vocabularies) are not followed."""

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES = (list, deque)
_OPAQUE = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)
_OURS = __name__.partition(".")[0]


class Snapshot:
    """The attributes of every module below a root, and the containers they hold.

    Values are recorded by reference; tensors are not copied. Plain objects among the attributes
    (configurations, caches) are recorded one level deep. `undo` restores every changed container in
    place, so all its holders see the restored content.
    """

    def __init__(self, model: torch.nn.Module, undo: Any) -> None:
        self._undo = undo
        self.reach: Reach | None = None
        self._own: list[Any] = []
        self._seen: set[int] = set()
        for module in model.modules():
            self._remember(module.__dict__, _DEPTH, True)

    def containers(self) -> list[Any]:
        """The modules' own dictionaries and lists, nested ones included, but not those of the
        objects in them."""
        return self._own

    def _remember(self, value: Any, depth: int, is_own: bool) -> None:
        kind = type(value)
        inner: list[Any]
        if isinstance(value, _OPAQUE) or depth == 0 or id(value) in self._seen:
            return
        if kind in _MAPPINGS:
            inner = list(value.values())
        elif kind in _SEQUENCES:
            inner = list(value)
        elif kind is set:
            inner = []
        else:
            if is_own and kind.__module__.partition(".")[0] not in (_OURS, "builtins"):
                self._remember(getattr(value, "__dict__", None), 2, False)
            return
        if len(value) > _LARGE:
            return
        self._seen.add(id(value))
        self._undo.content(value)
        if is_own:
            self._own.append(value)
        for item in inner:
            self._remember(item, depth - 1, is_own)


Result = TypeVar("Result")


def isolated(model: torch.nn.Module, function: Callable[[Snapshot], Result]) -> Result:
    """Runs `function(snapshot)` and then restores everything that a trace could disturb, even after an
    exception, in one step that can't be interrupted.

    While it runs, gradients are enabled and anomaly detection, which reads values, is off. The garbage
    collector is off too, so that storages die when their last holder releases them, not at a later
    collection.
    """
    return cast("Result", _core.guarded(_isolated, model, function))


def _isolated(undo: Any, model: torch.nn.Module, function: Callable[[Snapshot], Result]) -> Result:
    if gc.isenabled():
        undo.later(gc.enable)
        gc.disable()
    undo.later(torch.clear_autocast_cache)  # holds casts of the trace's parameters
    reach = Reach(list(model.modules()))
    RandomState().later(undo)
    torch_log = logging.getLogger("torch._subclasses.fake_tensor")
    undo.slot(vars(torch_log), "disabled")
    torch_log.disabled = True  # errors are raised, and reported once
    Switches().note(undo)
    without_modes(undo)
    enable_hooks(undo)
    undo.hooks()
    without_cached_weights(undo)
    snapshot = Snapshot(model, undo)
    note_reach(undo, reach)
    witness = Witness(undo, list(model.modules()))
    hush(undo, reach)
    for place in reach.caches:
        undo.slot(*place)
        write_place(place, _with_a_new_cache(read_place(place)))
    snapshot.reach = reach
    undo.later(torch._C._set_grad_enabled, torch.is_grad_enabled())
    torch.set_anomaly_enabled(False)
    with torch.enable_grad(), torch.inference_mode(False):
        try:
            return contextvars.copy_context().run(function, snapshot)  # what it sets there, goes with the copy
        finally:
            witness.change()


def _with_a_new_cache(function: Any) -> Any:
    """The same function with an empty cache, so that its own holds nothing of the trace."""
    return functools.lru_cache(**function.cache_parameters())(function.__wrapped__)


def note_reach(undo: Any, reach: Reach) -> None:
    """Makes `undo` restore the state that code reaches beside its modules."""
    for generator in reach.generators:
        note_generator(undo, generator)
    for place in reach.places:
        value = read_place(place)
        if has_content(value):
            undo.content(value)
        undo.slot(*place)
    for attributes in reach.holders:
        undo.content(attributes)
    for module in reach.modules:
        undo.content(module._buffers)
        undo.content(module.__dict__)
