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
from contextlib import contextmanager
from typing import Any

import torch

from ..base.walk import version_of
from ..errors import IntegrationError
from ..model.isolation import generators_of
from ..model.parametrized import CachedWeights

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
                    if _is_small_state(value)
                )
        return ModuleState(
            self,
            modules,
            parameters,
            tensors,
            [_scalars(inner) for inner in modules],
            [found for inner in modules for found in _containers(inner)],
            [(put_back, read) for inner in modules for read, put_back in generators_of(inner)],
        )

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
            now = holder.get(name)
            if now is buffer.tensor and buffer.version is not None and version_of(now) == buffer.version:
                self._constant[buffer.key] = (now, buffer.version)
                buffer.copy = None
            else:
                self._constant.pop(buffer.key, None)


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
        generators: list[tuple[Any, Any]],
    ) -> None:
        self._layer = layer
        self._modules = modules
        self._cached_weights = CachedWeights()
        self._parameters = parameters
        self.tensors = tensors
        self._scalars = scalars
        self._containers = containers
        self._generators = [(put_back, read, read()) for put_back, read in generators]

    def settle(self) -> None:
        """The call is over."""
        self._layer.settle(self)

    @contextmanager
    def rebound(self) -> Iterator[None]:
        """The modules are as before the call; afterwards as they are now."""
        now = [_Attributes(module) for module in self._modules]
        generators = [(put_back, read()) for put_back, read, _ in self._generators]
        try:
            for parameter in self._parameters:
                bound: dict[str, Any] = parameter.module._parameters
                if bound.get(parameter.name) is not parameter.for_replay(self._layer.name):
                    bound[parameter.name] = parameter.tensor
            for put_back, _, state in self._generators:
                put_back(state)
            with torch.no_grad():
                for holder, name, buffer in self.tensors:
                    holder[name] = buffer.for_replay(self._layer.name, name)
            for module, scalars in zip(self._modules, self._scalars, strict=True):
                for name, value in scalars.items():
                    if module.__dict__.get(name, _MISSING) is not value:
                        module.__dict__[name] = value
            self._bind_containers()
            with self._cached_weights.restored():
                yield
        finally:
            for put_back, state in generators:
                put_back(state)
            for attributes in now:
                attributes.put_back()

    def _bind_containers(self) -> None:
        """Copies as they were before the call, one for all names that one container has."""
        copies: dict[int, Any] = {}
        for holder, name, container, content in self._containers:
            holder[name] = copies.setdefault(id(container), content.copy())


_MISSING = object()


def _scalars(module: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in module.__dict__.items() if type(value) in _SCALARS}


def _is_small_state(value: Any) -> bool:
    """Whether an attribute is a tensor that a forward may keep statistics in."""
    if type(value) is not torch.Tensor or value.requires_grad or value.layout is not torch.strided:
        return False
    return value.nbytes <= _SMALL_BYTES


def _containers(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
    """Plain containers among a module's attributes: where, the container, a copy of it."""
    attributes: dict[str, Any] = module.__dict__
    for name, value in attributes.items():
        if type(value) in _CONTAINERS and name not in _MODULES_OWN and len(value) <= _LARGE:
            items = value.values() if type(value) in _MAPPINGS else value
            if not any(isinstance(item, _OPAQUE) and not _is_small_state(item) for item in items):
                yield attributes, name, value, value.copy()


def _is_gathered(module: torch.nn.Module) -> bool:
    """Whether the module's parameters are shards, which FSDP replaces for forward and backward:
    in a replay it has them in place."""
    tensor = sys.modules.get("torch.distributed.tensor")
    sharded = getattr(tensor, "DTensor", None)
    return sharded is not None and any(isinstance(value, sharded) for value in module._parameters.values())


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


class _Attributes:
    """A module's attributes and what they hold in plain containers and objects, by reference."""

    __slots__ = ("_containers", "_dict", "_module")

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._dict = dict(module.__dict__)
        self._containers: list[tuple[Any, Any]] = []
        for name, value in self._dict.items():
            self._remember(value, 0 if name in _MODULES_OWN else 2)

    def _remember(self, value: Any, depth: int) -> None:
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
        self._containers.append((value, value.copy()))
        for item in () if depth == 0 or kind is set else value.values() if type(value) in _MAPPINGS else value:
            if type(item) in _CONTAINERS:
                self._remember(item, depth - 1)

    def put_back(self) -> None:
        current = self._module.__dict__
        for name in [name for name in current if name not in self._dict]:
            del current[name]
        for name, value in self._dict.items():
            if current.get(name, _MISSING) is not value:
                current[name] = value
        for container, before in self._containers:
            _refill(container, before)


def _refill(container: Any, before: Any) -> None:
    if isinstance(container, (list, deque)):
        if len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
            container.clear()
            container.extend(before)
    elif isinstance(container, dict):
        if list(container) != list(before) or any(container[key] is not before[key] for key in before):
            container.clear()
            container.update(before)
    elif container != before:
        container.clear()
        container.update(before)
