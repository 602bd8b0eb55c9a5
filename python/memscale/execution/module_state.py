"""The state of a layer's modules around a replay: parameters, buffers, generators and attributes.

A layer may update its buffers in forward (running statistics). Its replay must not see the
updated buffers and must not update them twice. So the replay runs on copies of the values
before the call, and the originals, which it never writes, are bound again afterwards.

- Small tensors and plain containers among the attributes are copied like buffers. A tensor
  that belongs to a graph is not, because a record must not keep a graph alive.
- Other attributes that a forward sets (counters, caches) are restored after the replay, and
  so are the states of random number generators that a module keeps.
- The replay binds the parameters of the call, because a functional call swaps others in for
  its duration. It also binds the weights that `parametrize.cached()` kept during the call.

`memscale.execution.replay` uses this module.
"""

from __future__ import annotations

import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import _core
from ..base.divided import shard_type
from ..base.walk import version_of
from ..errors import IntegrationError
from ..model.parametrized import CachedWeights
from ..model.quiet import hush
from ..model.reach import (
    MISSING,
    Place,
    Reach,
    generator_state,
    has_content,
    is_array,
    is_container,
    is_state,
    note_generator,
    read_place,
    set_generator,
    write_place,
)
from ..model.witness import Witness

__all__ = ["LayerState", "ModuleState", "is_large"]

_SMALL_BYTES = 1 << 20
"""Buffers of at most this size are compared at every call and copied if they have changed; on a GPU
they are copied at every call. Larger buffers (quantised weights, codebooks) are copied at every call
until a call leaves them unchanged."""

_FROZEN_BYTES = 4 << 20
"""Large frozen parameters of modules that are not children are copied at a layer's first calls up to these bytes in
all."""

_SCALARS = frozenset({bool, int, float, str, type(None)})
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES = (list, deque)
_CONTAINERS = (*_MAPPINGS, *_SEQUENCES, set)

_OPAQUE = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CLOSED = ("memscale", "torch", "builtins")
"""Packages whose objects are not searched for containers."""

_GENERATOR_HOLDERS = (list, dict, tuple)
_STATEFUL = (torch.Tensor, *_CONTAINERS, *_GENERATOR_HOLDERS)
"""Types of attributes whose values tell whether they are state."""

_FEW_ITEMS = 16
"""Plain containers with more items are not searched for random generators."""

_LARGE = 4096
"""Containers with more items (data sets, vocabularies) are neither copied nor restored."""

_SEARCHES_MOST = 8
"""An object that grows at every call is searched anew at most this often."""

_WATCHED_REPLAYS = 3
"""Replays of a layer that have a witness. The first calls may make the objects that later ones change."""


class LayerState:
    """Facts about one layer's modules that hold from call to call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._copies: dict[tuple[int, str], torch.Tensor] = {}
        self._constant: dict[tuple[int, str], tuple[torch.Tensor, int]] = {}
        self._reach: Reach | None = None
        self._reached_from: list[int] = []
        self._size = self._searches = self._looks = self._watched = 0
        self._kinds: list[tuple[type, ...]] = []
        self._room = 0
        self._writes: str | None = None
        self.inert: set[type] = set()
        """Types of attributes that are no state, whatever their values are."""
        self.quiet: set[type] = set()
        """Types of attributes whose objects are not searched."""
        self._rebound: set[tuple[int, str]] = set()

    def obstacle(self, module: torch.nn.Module) -> str | None:
        """The reason why no call of `module` can be repeated; None if no reason is known."""
        return self._writes or (self._reach or self._reach_of(modules_of(module))).obstacle

    def _reach_of(self, modules: list[torch.nn.Module]) -> Reach:
        """The state that the modules' code reaches. Searched once, and again if modules were added or removed, or
        the first calls have made attributes or filled caches."""
        numbers = [id(module) for module in modules]
        if self._reach is None or numbers != self._reached_from or self._has_new_attributes(modules):
            self._reach, self._reached_from = Reach(modules), numbers
            self._size = self._reach.size()
        elif self._searches < _SEARCHES_MOST and self._reach.size() != self._size:
            self._searches += 1
            self._reach = Reach(modules)
            self._size = self._reach.size()
        return self._reach

    def _has_new_attributes(self, modules: list[torch.nn.Module]) -> bool:
        """Whether the modules' attributes have other types than at the call before. Only the first calls look, because
        objects that a forward makes (a copy of the layer, a cache) are mostly made there."""
        if self._looks == _SEARCHES_MOST:
            return False
        self._looks += 1
        before, self._kinds = self._kinds, [tuple(map(type, module.__dict__.values())) for module in modules]
        return before != self._kinds

    def take(self, module: torch.nn.Module, modes: list[Any]) -> ModuleState:
        """The state before a call of `module` (the layer, or a replica of it), that of the modes around it included."""
        modules = modules_of(module)  # at every call, because modules may have been added since
        owned = len(modules)
        reach = self._reach_of(modules)
        if reach.modules:
            modules = [*modules, *reach.modules]
        held, buffers, others = _core.take_snapshot(modules, owned, self.inert, shard_type())
        attributes = _Attributes(others, self.inert)
        tensors: list[tuple[dict[str, Any], str, _Buffer]] = []
        places: list[Any] = []
        if reach.modules or reach.places or buffers or attributes.tensors:
            with torch.no_grad():
                tensors = self._tensors_of(reach, modules, buffers, attributes.tensors)
                places = [found for place in reach.places if (found := self._look(place)) is not None]
            tensors.extend(found for found in places if type(found[2]) is _Buffer)
        generators = {id(generator): generator for generator in (*attributes.generators, *reach.generators)}
        return ModuleState(
            self,
            modules,
            held,
            tensors,
            [(modules[index].__dict__, name, value, value.copy()) for index, name, value in attributes.containers],
            list(generators.values()),
            _Reached(reach, [found for found in places if type(found[2]) is not _Buffer]),
            [(mode, self._of_mode(mode)) for mode in modes],
        )

    def _tensors_of(
        self,
        reach: Reach,
        modules: list[torch.nn.Module],
        buffers: list[tuple[int, str, Any]],
        attributes: list[tuple[int, str, torch.Tensor]],
    ) -> list[tuple[dict[str, Any], str, _Buffer]]:
        """The tensors of modules that a call may write to, and copies of them where they are needed."""
        self._room = _FROZEN_BYTES
        tensors = [held for inner in reach.modules for held in self._frozen_of(inner)]
        for index, name, buffer in buffers:
            holder: dict[str, Any] = modules[index]._buffers
            tensors.append((holder, name, self._copy_of((index, name), buffer)))
        tensors.extend(
            (modules[index].__dict__, name, self._copy_of((index, name), value))
            for index, name, value in attributes
            if (index, name) not in self._rebound
        )
        return tensors

    def _of_mode(self, mode: Any) -> _Reached:
        reach = Reach([], [mode])
        places = [found for place in reach.places if (found := self._look(place)) is not None]
        return _Reached(reach, [found for found in places if type(found[2]) is not _Buffer])

    def _look(self, place: Place) -> Any:
        """The content of a place that the code names.

        The result is (holder, name, value, copy of the value's content), or (holder, name, buffer) for a
        tensor, or None if the place holds no state. The value is MISSING if it belongs to a graph, because
        a record must not keep a graph alive. The replay then finds the place's present value.
        """
        holder, name = place
        value = read_place(place)
        if value is MISSING or not is_state(value):
            return None
        if _holds_graph(value, 2):
            return holder, name, MISSING, None
        if isinstance(value, torch.Tensor):
            key = (id(holder), name)
            return (holder, name, self._copy_of(key, value)) if key not in self._rebound else None
        if is_array(value):
            return holder, name, value, value.copy()
        return holder, name, value, _core.content(value) if has_content(value) else None

    def _frozen_of(self, module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, _Buffer]]:
        """The parameters without gradients of a module that is not a child, such as a teacher's, which the layer may
        move. Beyond `_FROZEN_BYTES` a large one is not copied: if the call writes it, the layer can't be repeated."""
        parameters: dict[str, Any] = module._parameters
        for name, value in parameters.items():
            if value is not None and not value.requires_grad and value.is_leaf and not value.is_inference():
                key = (id(parameters), name)
                counts = is_large(value)
                if counts and _dense_bytes(value) > self._room:
                    yield parameters, name, _Buffer(key, value, version_of(value), None)
                    continue
                found = self._copy_of(key, value)
                self._room -= _dense_bytes(value) if counts and found.copy is not None else 0
                yield parameters, name, found

    def _copy_of(self, key: tuple[int, str], buffer: torch.Tensor) -> _Buffer:
        if is_large(buffer):
            version = version_of(buffer)
            constant = self._constant.get(key)
            if constant is not None and constant[0] is buffer and constant[1] == version:
                return _Buffer(key, buffer, version, None)
            return _Buffer(key, buffer, version, buffer.detach().clone())
        copy = self._copies.get(key)
        if copy is None or buffer.device.type != "cpu" or not _has_bytes(copy, buffer):
            copy = self._copies[key] = buffer.detach().clone()
        return _Buffer(key, buffer, version_of(buffer), copy)

    def is_watched(self) -> bool:
        """Whether the layer's next replay has a witness."""
        self._watched += 1
        return self._watched <= _WATCHED_REPLAYS

    def watched(self, undo: Any, modules: list[torch.nn.Module], run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Calls `run(undo, *args)` with an Undo of its own; `undo` restores what that one leaves changed."""
        witness = Witness(undo, modules)
        try:
            return _core.guarded(run, *args)
        finally:
            changed = witness.change()
            if changed is not None and self._writes is None:
                self._writes = f"it changes {changed!r}"

    def settle(self, state: ModuleState) -> None:
        """Drops, after the call, the copies of large buffers that the call did not write."""
        for holder, name, buffer in state.tensors:
            if buffer.copy is None and version_of(buffer.tensor) != buffer.version and not state.is_buffer(holder):
                self._writes = f"it writes to {name!r}"
            if buffer.copy is None or not is_large(buffer.tensor):
                continue
            now = read_place((holder, name))
            if buffer.version is not None and version_of(buffer.tensor) == buffer.version:
                if now is buffer.tensor:
                    self._constant[buffer.key] = (now, buffer.version)
                elif not state.is_buffer(holder):
                    self._rebound.add(buffer.key)  # the call bound another tensor; the old one is unchanged
                buffer.copy = None
            else:
                self._constant.pop(buffer.key, None)
                if not state.is_buffer(holder):
                    self._writes = f"it writes to {name!r}, {_dense_bytes(buffer.tensor) / 1e6:.0f} MB"


class _Buffer:
    __slots__ = ("copy", "key", "tensor", "version")

    def __init__(
        self, key: tuple[int, str], tensor: torch.Tensor, version: int | None, copy: torch.Tensor | None
    ) -> None:
        self.key = key
        self.tensor = tensor
        self.version = version
        self.copy = copy

    def for_replay(self, layer: str, name: str) -> torch.Tensor:
        """A tensor with the values before the call, which the replay may write to."""
        if self.copy is not None:
            return self.copy.clone()
        if self.tensor._version != self.version:
            raise IntegrationError(
                f"layer {layer}: its buffer {name!r} was changed in place after the layer's forward, so that "
                "the layer can't be recomputed"
            )
        return self.tensor


class _Reached:
    """What code reaches beside its modules, as it was before one call."""

    __slots__ = ("_holders", "_places", "_reach")

    def __init__(self, reach: Reach, places: list[tuple[Any, str, Any, Any]]) -> None:
        self._reach = reach
        self._places = places
        self._holders = [(holder, _scalars_in(holder), tuple(holder)) for holder in reach.holders]

    def note(self, undo: Any) -> None:
        """Restores attributes of objects; lets `undo` put the present ones back. Meanwhile the code's prints, logs and
        warnings are silenced."""
        hush(undo, self._reach)
        for attributes, scalars, names in self._holders:
            undo.content(attributes)
            for name in [name for name in attributes if name not in names]:
                del attributes[name]  # an attribute that the call, or a later one, has made
            attributes.update(scalars)

    def bind(self, undo: Any) -> None:
        """Restores the values of places."""
        for holder, name, value, content in self._places:
            if value is MISSING:
                undo.slot(holder, name)
                _note(read_place((holder, name)), 2, undo)
            elif is_array(value):
                undo.slot(holder, name)
                write_place((holder, name), content.copy())
                continue
            elif read_place((holder, name)) is not value:
                undo.slot(holder, name)
                write_place((holder, name), value)
            elif content is None:
                undo.slot(holder, name)  # the replay may set it again
            if content is not None:
                undo.content(value)
                undo.slot(holder, name)
                _core.put_content(value, content)


class ModuleState:
    """The state before one call."""

    __slots__ = (
        "_cached_weights",
        "_containers",
        "_generators",
        "_held",
        "_layer",
        "_modes",
        "_modules",
        "_reached",
        "tensors",
    )

    def __init__(
        self,
        layer: LayerState,
        modules: list[torch.nn.Module],
        held: _core.Snapshot,
        tensors: list[tuple[dict[str, Any], str, _Buffer]],
        containers: list[tuple[dict[str, Any], str, Any, Any]],
        generators: list[Any],
        reached: _Reached,
        modes: list[tuple[Any, _Reached]],
    ) -> None:
        self._layer = layer
        self._modules = modules
        self._held = held
        self._cached_weights = CachedWeights()
        self.tensors = tensors
        self._containers = containers
        self._generators = [(generator, _state_of(generator)) for generator in generators]
        self._reached = reached
        self._modes = modes

    def is_buffer(self, holder: Any) -> bool:
        """Whether the dictionary `holder` holds the buffers of one of the modules."""
        return any(module._buffers is holder for module in self._modules)

    def settle(self) -> None:
        """The call is over."""
        self._layer.settle(self)

    def is_watched(self) -> bool:
        """Whether the next replay has a witness."""
        return self._layer.is_watched()

    def watched(self, undo: Any, run: Callable[..., Any], *args: Any) -> Any:
        """Calls `run(undo, *args)` with an Undo of its own, under a witness."""
        return self._layer.watched(undo, self._modules, run, args)

    def put(self, undo: Any, left: list[Any]) -> None:
        """Restores the state before the call; `undo` puts the present state back. Restores only those modes around the
        call that are in `left`; the others are on now, and their state must count what runs."""
        reached = [self._reached, *(state for mode, state in self._modes if any(mode is one for one in left))]
        note_attributes(undo, self._modules, self._layer.quiet)
        for state in reached:
            state.note(undo)
        self._held.put_attributes()
        for generator, drawn in self._generators:
            note_generator(undo, generator)
            set_generator(generator, drawn)
        changed = self._held.bind_parameters(undo)
        if changed is not None:
            raise IntegrationError(
                f"layer {self._layer.name}: its parameter {changed!r} was changed in place after the layer's forward "
                "(an optimizer step, before the backward?), so that the layer can't be recomputed; run the "
                "backward first, or set enable_checkpointing=False"
            )
        if self.tensors:
            self._bind_tensors(undo)
        if self._containers:
            self._bind_containers()
        for state in reached:
            state.bind(undo)
        self._cached_weights.put(undo)

    def _bind_tensors(self, undo: Any) -> None:
        """Binds copies with the values before the call."""
        bound_tensors: dict[int, torch.Tensor] = {}  # a tensor under several names is bound once
        with torch.no_grad():
            for holder, name, buffer in self.tensors:
                undo.slot(holder, name)
                if id(buffer.tensor) not in bound_tensors:
                    bound_tensors[id(buffer.tensor)] = buffer.for_replay(self._layer.name, name)
                write_place((holder, name), bound_tensors[id(buffer.tensor)])

    def _bind_containers(self) -> None:
        """Binds copies with the content before the call; a container under several names gets one copy."""
        copies: dict[int, Any] = {}
        for holder, name, container, content in self._containers:
            holder[name] = copies.setdefault(id(container), content.copy())


class _Attributes:
    """Attributes that are no scalars, sorted by kind: (the module's number, name, value)."""

    __slots__ = ("_inert", "containers", "generators", "tensors")

    def __init__(self, others: list[tuple[int, str, Any]], inert: set[type]) -> None:
        self._inert = inert
        self.tensors: list[tuple[int, str, torch.Tensor]] = []
        self.containers: list[tuple[int, str, Any]] = []  # plain ones, and NumPy's arrays
        self.generators: list[Any] = []  # of torch, Python and NumPy, those in plain containers included
        for other in others:
            self._add(other)

    def _add(self, other: tuple[int, str, Any]) -> None:
        value = other[2]
        kind = type(value)
        if _is_state_tensor(value):
            self.tensors.append(other)
        elif is_array(value) or kind in _CONTAINERS and _is_plain(value):
            self.containers.append(other)
        items: Any = (value,)
        if kind in _GENERATOR_HOLDERS:
            items = () if len(value) > _FEW_ITEMS else value.values() if kind is dict else value
        found = [item for item in items if generator_state(item) is not None]
        self.generators.extend(found)
        if not found and not (kind in _STATEFUL or kind.__module__ == "numpy"):
            self._inert.add(kind)


def _scalars_in(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if type(value) in _SCALARS}


def _state_of(generator: Any) -> Any:
    read, _ = generator_state(generator) or (None, None)
    return read() if read is not None else None


def _is_state_tensor(value: Any) -> bool:
    return type(value) is torch.Tensor and not value.requires_grad and value.layout is torch.strided


def _is_small_state(value: Any) -> bool:
    """Whether an attribute is a small tensor, in which a forward may keep statistics."""
    return _is_state_tensor(value) and value.nbytes <= _SMALL_BYTES


def _is_plain(container: Any) -> bool:
    """Whether a container has few items, and none is a module, a class or another tensor than a small one without a
    graph."""
    if len(container) > _LARGE:
        return False
    items = container.values() if type(container) in _MAPPINGS else container
    return not any(isinstance(item, _OPAQUE) and not _is_small_state(item) for item in items)


def _holds_graph(value: Any, depth: int) -> bool:
    """Whether `value` is a tensor of a graph or a container of one, down to `depth` nested containers."""
    if isinstance(value, torch.Tensor):
        return value.grad_fn is not None
    if not (is_container(value) or isinstance(value, tuple)) or depth < 0 or len(value) > _LARGE:
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(_holds_graph(item, depth - 1) for item in items)


def modules_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The module and all modules in it, each once."""
    try:
        return _core.module_list(module)
    except TypeError:  # a scripted module keeps them elsewhere
        return list(module.modules())


def _dense_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def is_large(tensor: torch.Tensor) -> bool:
    """Whether its version tells if it was written. Of a sparse tensor the bytes are not compared either."""
    return tensor.layout is not torch.strided or tensor.nbytes > _SMALL_BYTES


def _has_bytes(copy: torch.Tensor, buffer: torch.Tensor) -> bool:
    """Whether `buffer` still has the bytes of its copy. Its version does not tell: batch norms, NumPy's views and
    `.data` write without counting."""
    are_plain = type(buffer) in _PLAIN and buffer.layout is torch.strided and buffer.is_contiguous()
    if not are_plain or copy.dtype is not buffer.dtype or copy.shape != buffer.shape or not copy.is_contiguous():
        return False
    return _core.same_bytes(copy.data_ptr(), buffer.data_ptr(), buffer.nbytes)


def note_attributes(undo: Any, modules: list[torch.nn.Module], quiet: set[type]) -> None:
    """Lets `undo` restore the modules' attributes, and the content of their plain containers and objects."""
    _core.note_modules(undo, modules, quiet, is_container, _is_open)


def _is_open(value: Any, quiet: set[type]) -> bool:
    """Whether the attributes of an object are searched: it may keep counters or averages. Adds its type to `quiet` if
    no object of the type is."""
    kind = type(value)
    is_quiet = issubclass(kind, _OPAQUE) or kind.__module__.partition(".")[0] in _CLOSED
    if is_quiet:
        quiet.add(kind)
        return False
    known = value.__class__  # asked once, because isinstance() asks for each class; a configuration answers in Python
    return known is kind or not issubclass(known, _OPAQUE)


def _note(value: Any, depth: int, undo: Any) -> None:
    """Lets `undo` restore the content of `value`, down to `depth` nested containers."""
    kind = type(value)
    if kind in _SCALARS:
        return
    if not is_container(value):
        if depth < 2 or isinstance(value, _OPAQUE) or kind.__module__.partition(".")[0] in _CLOSED:
            return
        value = getattr(value, "__dict__", None)  # an object may keep counters or averages
        if type(value) is not dict:
            return
    if len(value) > _LARGE:
        return
    undo.content(value)
    for item in () if depth == 0 or isinstance(value, set) else value.values() if isinstance(value, dict) else value:
        if is_container(item):
            _note(item, depth - 1, undo)
