"""The state of a layer's modules around a replay: parameters, buffers, generators, flags
and attributes.

A layer that updates its buffers in forward (running statistics) must neither see the
updated ones when it is run again nor update them twice: it is replayed on copies, and
the originals are bound again afterwards, never written. The same goes for small tensors
and plain containers among the attributes, which hold such statistics too, as long as they
belong to no graph: a record must not keep one alive. Other attributes that a forward sets
(counters, caches) are put back, and so are the states of random number generators
that a module keeps. Parameters are those of the call: a functional call swaps others in
for its duration; weights that `parametrize.cached()` keeps are those of the call, too. Used by
`memscale.execution.replay`.
"""

from __future__ import annotations

import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch

from ..base.walk import version_of
from ..errors import IntegrationError
from ..model.isolation import generators_of, note_generator, set_generator
from ..model.parametrized import CachedWeights
from ..model.reach import MISSING, Place, Reach, generator_state, is_state, read_place, write_place

__all__ = ["LayerState", "ModuleState"]

_SMALL_BYTES = 1 << 20
"""Buffers up to here are compared and copied at every call; larger ones (quantised
weights, codebooks) are copied until a call has left them as they were. Larger tensors that are
plain attributes are left alone: they are what somebody keeps to look at."""

_SCALARS = (bool, int, float, str, type(None))
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES = (list, deque)
_CONTAINERS = (*_MAPPINGS, *_SEQUENCES, set)

_OPAQUE = (torch.Tensor, torch.nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)
_CLOSED = ("memscale", "torch", "builtins")
"""Packages whose objects are not looked into."""

_LARGE = 4096
"""Containers with more items are left alone: data sets, vocabularies."""

_MODULES_OWN = frozenset(torch.nn.Module().__dict__)
"""Attributes that every module has."""


class LayerState:
    """What is known of one layer's modules across calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._copies: dict[tuple[int, str], torch.Tensor] = {}
        self._constant: dict[tuple[int, str], tuple[torch.Tensor, int]] = {}
        self._reach: Reach | None = None
        self._reached_from: list[int] = []
        self._writes: str | None = None
        self._rebound: set[tuple[int, str]] = set()

    def obstacle(self, module: torch.nn.Module) -> str | None:
        """Why a call of `module` can't be repeated, as far as is known."""
        return self._writes or (self._reach or self._reach_of(list(module.modules()))).obstacle

    def _reach_of(self, modules: list[torch.nn.Module]) -> Reach:
        """Looked for once, and again where parts have been put in or taken out."""
        numbers = [id(module) for module in modules]
        if self._reach is None or numbers != self._reached_from:
            self._reach, self._reached_from = Reach(modules), numbers
        return self._reach

    def take(self, module: torch.nn.Module) -> ModuleState:
        """The state before a call of `module` (the layer, or a replica of it)."""
        modules = list(module.modules())  # at every call: parts may have been put in since
        parameters = [
            _Parameter(inner, name, parameter)
            for inner in modules
            for name, parameter in inner._parameters.items()
            if parameter is not None and not _is_gathered(inner)
        ]
        tensors: list[tuple[dict[str, Any], str, _Buffer]] = []
        reach = self._reach_of(modules)
        modules = [*modules, *reach.modules]
        with torch.no_grad():
            for index, inner in enumerate(modules):
                buffers: dict[str, Any] = inner._buffers
                tensors.extend(
                    (buffers, name, self._copy_of((index, name), buffer))
                    for name, buffer in buffers.items()
                    if buffer is not None
                )
                attributes: dict[str, Any] = inner.__dict__
                tensors.extend(
                    (attributes, name, self._copy_of((index, name), value))
                    for name, value in attributes.items()
                    if _is_state_tensor(value) and (index, name) not in self._rebound
                )
            places = [found for place in reach.places if (found := self._look(place)) is not None]
            tensors.extend(found for found in places if type(found[2]) is _Buffer)
        generators = {id(generator): generator for inner in modules for generator in generators_of(inner)}
        generators.update((id(generator), generator) for generator in reach.generators)
        return ModuleState(
            self,
            modules,
            parameters,
            tensors,
            [_scalars(inner) for inner in modules],
            [found for inner in modules for found in _containers(inner)],
            list(generators.values()),
            [found for found in places if type(found[2]) is not _Buffer],
            reach.holders,
        )

    def _look(self, place: Place) -> Any:
        """What lies in a place that the code names: (holder, name, value, copy of its content), or
        (holder, name, buffer) of a tensor. The value is MISSING if it belongs to a graph, which a record
        must not keep alive: the replay finds there what is there then."""
        holder, name = place
        value = read_place(place)
        if value is MISSING or not is_state(value):
            return None
        if _holds_graph(value, 2):
            return holder, name, MISSING, None
        if isinstance(value, torch.Tensor):
            key = (id(holder), name)
            return (holder, name, self._copy_of(key, value)) if key not in self._rebound else None
        return holder, name, value, value.copy() if type(value) in _CONTAINERS else None

    def _copy_of(self, key: tuple[int, str], buffer: torch.Tensor) -> _Buffer:
        if buffer.nbytes > _SMALL_BYTES:
            version = version_of(buffer)
            constant = self._constant.get(key)
            if constant is not None and constant[0] is buffer and constant[1] == version:
                return _Buffer(key, buffer, version, None)
            return _Buffer(key, buffer, version, buffer.detach().clone())
        copy = self._copies.get(key)
        if copy is None or buffer.device.type != "cpu" or not _equal(copy, buffer):
            copy = self._copies[key] = buffer.detach().clone()
        return _Buffer(key, buffer, version_of(buffer), copy)

    def settle(self, state: ModuleState) -> None:
        """After the call: large buffers that it left alone need no copy any more."""
        for holder, name, buffer in state.tensors:
            if buffer.copy is None or buffer.tensor.nbytes <= _SMALL_BYTES:
                continue
            now = read_place((holder, name))
            if buffer.version is not None and version_of(buffer.tensor) == buffer.version:
                if now is buffer.tensor:
                    self._constant[buffer.key] = (now, buffer.version)
                elif not state.is_buffer(holder):
                    self._rebound.add(buffer.key)  # what it was is as it was
                buffer.copy = None
            else:
                self._constant.pop(buffer.key, None)
                if not state.is_buffer(holder):
                    self._writes = f"it writes to {name!r}, {buffer.tensor.nbytes / 1e6:.0f} MB"


class _Parameter:
    """A parameter as it was bound for the call, or the tensor that stood in for it."""

    __slots__ = ("module", "name", "tensor", "version")

    def __init__(self, module: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
        self.module = module
        self.name = name
        self.version = version_of(tensor)
        # A result of the caller's graph: what holds it here must not hold that graph.
        self.tensor = tensor if tensor.is_leaf else tensor.detach().requires_grad_(tensor.requires_grad)

    def for_replay(self, layer: str) -> torch.Tensor:
        """What to bind.

        Raises:
            IntegrationError: it was changed in place since.
        """
        if self.version is not None and self.tensor._version != self.version:
            raise IntegrationError(
                f"layer {layer}: its parameter {self.name!r} was changed in place after the layer's forward "
                "(an optimizer step, before the backward?), so that the layer can't be recomputed; run the "
                "backward first, or set enable_checkpointing=False"
            )
        return self.tensor


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
        """A tensor with the values before the call, which the replay may write."""
        if self.copy is not None:
            return self.copy.clone()
        if self.tensor._version != self.version:
            raise IntegrationError(
                f"layer {layer}: its buffer {name!r} was changed in place after the layer's forward, so that "
                "the layer can't be recomputed"
            )
        return self.tensor


class ModuleState:
    """The state before one call."""

    __slots__ = (
        "_cached_weights",
        "_containers",
        "_generators",
        "_layer",
        "_modules",
        "_parameters",
        "_holders",
        "_places",
        "_scalars",
        "tensors",
    )

    def __init__(
        self,
        layer: LayerState,
        modules: list[torch.nn.Module],
        parameters: list[_Parameter],
        tensors: list[tuple[dict[str, Any], str, _Buffer]],
        scalars: list[dict[str, Any]],
        containers: list[tuple[dict[str, Any], str, Any, Any]],
        generators: list[Any],
        places: list[tuple[Any, str, Any, Any]],
        holders: list[dict[str, Any]],
    ) -> None:
        self._layer = layer
        self._modules = modules
        self._cached_weights = CachedWeights()
        self._parameters = parameters
        self.tensors = tensors
        self._scalars = scalars
        self._containers = containers
        self._generators = [(generator, _state_of(generator)) for generator in generators]
        self._places = places
        self._holders = holders

    def is_buffer(self, holder: Any) -> bool:
        """Whether that dictionary holds buffers of one of the modules."""
        return any(module._buffers is holder for module in self._modules)

    def settle(self) -> None:
        """The call is over."""
        self._layer.settle(self)

    def put(self, undo: Any) -> None:
        """The modules are as before the call, until `undo` puts back what is now."""
        for module in self._modules:
            note_attributes(module, undo)
        for attributes in self._holders:
            undo.content(attributes)
        for generator, state in self._generators:
            note_generator(undo, generator)
            set_generator(generator, state)
        for parameter in self._parameters:
            bound: dict[str, Any] = parameter.module._parameters
            if bound.get(parameter.name) is not parameter.for_replay(self._layer.name):
                undo.slot(bound, parameter.name)
                bound[parameter.name] = parameter.tensor
        bound_tensors: dict[int, torch.Tensor] = {}  # one for all names that it has
        with torch.no_grad():
            for holder, name, buffer in self.tensors:
                undo.slot(holder, name)
                if id(buffer.tensor) not in bound_tensors:
                    bound_tensors[id(buffer.tensor)] = buffer.for_replay(self._layer.name, name)
                write_place((holder, name), bound_tensors[id(buffer.tensor)])
        for module, scalars in zip(self._modules, self._scalars, strict=True):
            for name, value in scalars.items():
                if module.__dict__.get(name, _MISSING) is not value:
                    module.__dict__[name] = value
        self._bind_containers()
        self._bind_places(undo)
        self._cached_weights.put(undo)

    def _bind_places(self, undo: Any) -> None:
        for holder, name, value, content in self._places:
            if value is MISSING:
                undo.slot(holder, name)
                _note(read_place((holder, name)), 2, undo)
            elif read_place((holder, name)) is not value:
                undo.slot(holder, name)
                write_place((holder, name), value)
            elif content is None:
                undo.slot(holder, name)  # the replay may count on
            if content is not None:
                undo.content(value)
                undo.slot(holder, name)
                value.clear()
                value.extend(content) if isinstance(value, (list, deque)) else value.update(content)

    def _bind_containers(self) -> None:
        """Copies as they were before the call, one for all names that one container has."""
        copies: dict[int, Any] = {}
        for holder, name, container, content in self._containers:
            holder[name] = copies.setdefault(id(container), content.copy())


_MISSING = object()


def _scalars(module: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in module.__dict__.items() if type(value) in _SCALARS}


def _state_of(generator: Any) -> Any:
    read, _ = generator_state(generator) or (None, None)
    return read() if read is not None else None


def _is_state_tensor(value: Any) -> bool:
    return type(value) is torch.Tensor and not value.requires_grad and value.layout is torch.strided


def _is_small_state(value: Any) -> bool:
    """Whether an attribute is a tensor that a forward may keep statistics in."""
    return _is_state_tensor(value) and value.nbytes <= _SMALL_BYTES


def _containers(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
    """Plain containers among a module's attributes: where, the container, a copy of it."""
    attributes: dict[str, Any] = module.__dict__
    for name, value in attributes.items():
        if type(value) in _CONTAINERS and name not in _MODULES_OWN and len(value) <= _LARGE:
            items = value.values() if type(value) in _MAPPINGS else value
            if not any(isinstance(item, _OPAQUE) and not _is_small_state(item) for item in items):
                yield attributes, name, value, value.copy()


def _holds_graph(value: Any, depth: int) -> bool:
    """Whether a container holds a tensor that an operator gave; `depth`: of containers inside."""
    if isinstance(value, torch.Tensor):
        return value.grad_fn is not None
    if type(value) not in (*_CONTAINERS, tuple) or depth < 0 or len(value) > _LARGE:
        return False
    items = value.values() if type(value) in _MAPPINGS else value
    return any(_holds_graph(item, depth - 1) for item in items)


def _is_gathered(module: torch.nn.Module) -> bool:
    """Whether the module's parameters are shards, which FSDP replaces for forward and backward:
    in a replay it has them in place."""
    tensor = sys.modules.get("torch.distributed.tensor")
    sharded = getattr(tensor, "DTensor", None)
    return sharded is not None and any(isinstance(value, sharded) for value in module._parameters.values())


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def note_attributes(module: torch.nn.Module, undo: Any) -> None:
    """A module's attributes and what they hold in plain containers and objects are put back by `undo`."""
    attributes = module.__dict__
    for name, value in attributes.items():
        _note(value, 0 if name in _MODULES_OWN else 2, undo)
    undo.content(attributes)  # put back first, so that what it holds is found


def _note(value: Any, depth: int, undo: Any) -> None:
    """`depth`: of containers inside."""
    kind = type(value)
    if kind not in _CONTAINERS:
        if depth < 2 or isinstance(value, _OPAQUE) or kind.__module__.partition(".")[0] in _CLOSED:
            return
        value = getattr(value, "__dict__", None)  # of an object that counts or averages
        if type(value) is not dict:
            return
    if len(value) > _LARGE:
        return
    undo.content(value)
    for item in () if depth == 0 or kind is set else value.values() if type(value) in _MAPPINGS else value:
        if type(item) in _CONTAINERS:
            _note(item, depth - 1, undo)
