"""Leaves a model as it was found, whatever ran on it in between.

Used by the profiler around a trace. Modules cache tensors in their forward, count
calls, rebind buffers; objects they hold (configurations, caches) do the same. All
attribute dictionaries and plain containers below a module are remembered and put
back, together with the random number generators and torch's global switches.
"""

from __future__ import annotations

import gc
import logging
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..device import RandomState
from .parametrized import without_cached_weights

__all__ = ["Snapshot", "generators_of", "isolated"]

_DEPTH = 4
"""How deep containers below a module's attributes are followed."""

_LARGE = 4096
"""Containers with more items are left alone: data sets, vocabularies."""

_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES = (list, deque)
_OPAQUE = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)
_OURS = __name__.partition(".")[0]

_GENERATOR_HOLDERS = (list, dict, tuple)

_FEW_ITEMS = 16
"""Longer containers are not searched for generators."""

_State = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How a generator's state is read, and put back."""


class Snapshot:
    """The attributes of every module below a root, and the containers they hold.

    Values are remembered by reference: tensors are not copied. Plain objects among the
    attributes (configurations, caches) are remembered one level deep. `restore()` puts
    back what is different, in place, so that who holds a container sees it restored.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._kept: list[tuple[Any, Any]] = []
        self._own: list[Any] = []
        self._seen: set[int] = set()
        for module in model.modules():
            self._remember(module.__dict__, _DEPTH, True)

    def containers(self) -> list[Any]:
        """The modules' own dictionaries and lists, nested ones included, those of the
        objects they hold not."""
        return self._own

    def _remember(self, value: Any, depth: int, is_own: bool) -> None:
        kind = type(value)
        content: Any
        inner: list[Any]
        if isinstance(value, _OPAQUE) or depth == 0 or id(value) in self._seen:
            return
        if kind in _MAPPINGS:
            content, inner = dict(value), list(value.values())
        elif kind in _SEQUENCES:
            content, inner = list(value), list(value)
        elif kind is set:
            content, inner = set(value), []
        else:
            if is_own and kind.__module__.partition(".")[0] not in (_OURS, "builtins"):
                self._remember(getattr(value, "__dict__", None), 2, False)
            return
        if len(content) > _LARGE:
            return
        self._seen.add(id(value))
        self._kept.append((value, content))
        if is_own:
            self._own.append(value)
        for item in inner:
            self._remember(item, depth - 1, is_own)

    def restore(self) -> None:
        """Puts every remembered container back to its content."""
        for container, content in self._kept:
            if not _same(container, content):
                _refill(container, content)


def _same(container: Any, content: Any) -> bool:
    if len(container) != len(content):
        return False
    if isinstance(container, dict):
        pairs = zip(container.items(), content.items(), strict=True)
        return all(now[0] is before[0] and now[1] is before[1] for now, before in pairs)
    if isinstance(container, set):
        return bool(container == content)
    return all(now is before for now, before in zip(container, content, strict=True))


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(content)
    else:
        container.extend(content)


def generators_of(module: torch.nn.Module) -> Iterator[_State]:
    """The random number generators of torch, Python and NumPy among a module's attributes and in
    plain containers there."""
    for value in module.__dict__.values():
        items: Any = (value,)
        if type(value) in _GENERATOR_HOLDERS and 0 < len(value) <= _FEW_ITEMS:
            items = value.values() if type(value) is dict else value
        for item in items:
            found = _generator_state(item)
            if found is not None:
                yield found


def _generator_state(value: Any) -> _State | None:
    kind = type(value)
    if kind is torch.Generator:
        return value.get_state, value.set_state
    if kind is random.Random:
        return value.getstate, value.setstate
    if kind.__module__ not in _NUMPYS:
        return None
    if kind.__name__ == "RandomState":
        return value.get_state, value.set_state
    if kind.__name__ == "Generator":
        bits = value.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


_NUMPYS = ("numpy.random.mtrand", "numpy.random._generator")  # it may not be there, so types are known by name


@contextmanager
def isolated(model: torch.nn.Module) -> Iterator[Snapshot]:
    """Everything a trace could disturb, put back at the end, exception or not.

    Inside, gradients are enabled, anomaly detection is off (it looks at values) and the
    garbage collector is off, so that storages die when their last holder lets go and not
    when a collection happens to run.
    """
    snapshot = Snapshot(model)
    torch_log = logging.getLogger("torch._subclasses.fake_tensor")
    was_silent, torch_log.disabled = torch_log.disabled, True  # what fails is raised and reported once
    generators = RandomState()
    own = [(put_back, read()) for module in model.modules() for read, put_back in generators_of(module)]
    collecting = gc.isenabled()
    gc.disable()
    try:
        with (
            torch.enable_grad(),
            torch.inference_mode(False),
            torch.autograd.set_detect_anomaly(False),
            without_cached_weights(),
        ):
            yield snapshot
    finally:
        snapshot.restore()
        torch_log.disabled = was_silent
        generators.put_back()
        for put_back, state in own:
            put_back(state)
        torch.clear_autocast_cache()  # holds casts of the trace's parameters
        if collecting:
            gc.enable()
