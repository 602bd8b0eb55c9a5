"""The state of a layer's modules around a replay: parameters, buffers, generators, flags
and attributes.

A layer that updates its buffers in forward (running statistics) must neither see the
updated ones when it is run again nor update them twice: it is replayed on copies, and
the originals are bound again afterwards, never written. Attributes that a forward sets
(counters, caches) are put back too, and so are the states of random number generators
that a module keeps. Parameters are those of the call: a functional call swaps others in
for its duration. Used by `memscale.core.replay`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import IntegrationError

__all__ = ["LayerState", "ModuleState"]

_SMALL_BYTES = 1 << 20
"""Buffers up to here are compared and copied at every call; larger ones (quantised
weights, codebooks) are copied until a call has left them as they were."""

_SCALARS = (bool, int, float, str, type(None))
_CONTAINERS = (list, dict, set)
_GENERATOR_HOLDERS = (list, dict, tuple)

_FEW_ITEMS = 16
"""Longer containers are not searched for generators at every call."""


class LayerState:
    """What is known of one layer's modules across calls."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name = name
        self._modules = list(module.modules())
        self._copies: dict[tuple[int, str], torch.Tensor] = {}
        self._constant: dict[tuple[int, str], tuple[torch.Tensor, int]] = {}

    def take(self, module: torch.nn.Module) -> ModuleState:
        """The state before a call of `module` (the layer, or a replica of it)."""
        modules = self._modules if self._modules[0] is module else list(module.modules())
        parameters = [
            _Parameter(inner, name, parameter)
            for inner in modules
            for name, parameter in inner._parameters.items()
            if parameter is not None and not _is_gathered(inner)
        ]
        buffers = []
        with torch.no_grad():
            for index, inner in enumerate(modules):
                for name, buffer in inner._buffers.items():
                    if buffer is not None:
                        buffers.append((inner, name, self._copy_of((index, name), buffer)))
        return ModuleState(
            self,
            modules,
            parameters,
            buffers,
            [_scalars(inner) for inner in modules],
            [(found, found.get_state()) for inner in modules for found in _generators(inner)],
        )

    def _copy_of(self, key: tuple[int, str], buffer: torch.Tensor) -> _Buffer:
        if buffer.nbytes > _SMALL_BYTES:
            constant = self._constant.get(key)
            if constant is not None and constant[0] is buffer and constant[1] == buffer._version:
                return _Buffer(key, buffer, buffer._version, None)
            return _Buffer(key, buffer, buffer._version, buffer.detach().clone())
        copy = self._copies.get(key)
        if copy is None or buffer.device.type != "cpu" or not _equal(copy, buffer):
            copy = self._copies[key] = buffer.detach().clone()
        return _Buffer(key, buffer, buffer._version, copy)

    def settle(self, state: ModuleState) -> None:
        """After the call: large buffers that it left alone need no copy any more."""
        for module, name, buffer in state.buffers:
            if buffer.copy is None or buffer.tensor.nbytes <= _SMALL_BYTES:
                continue
            now = module._buffers.get(name)
            if now is buffer.tensor and now._version == buffer.version:
                self._constant[buffer.key] = (now, now._version)
                buffer.copy = None
            else:
                self._constant.pop(buffer.key, None)


class _Parameter:
    """A parameter as it was bound for the call, or the tensor that stood in for it."""

    __slots__ = ("module", "name", "tensor", "version")

    def __init__(self, module: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
        self.module = module
        self.name = name
        self.version = None if tensor.is_inference() else tensor._version
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
        self, key: tuple[int, str], tensor: torch.Tensor, version: int, copy: torch.Tensor | None
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

    __slots__ = ("_generators", "_layer", "_modules", "_parameters", "_scalars", "buffers")

    def __init__(
        self,
        layer: LayerState,
        modules: list[torch.nn.Module],
        parameters: list[_Parameter],
        buffers: list[tuple[torch.nn.Module, str, _Buffer]],
        scalars: list[dict[str, Any]],
        generators: list[tuple[torch.Generator, torch.Tensor]],
    ) -> None:
        self._layer = layer
        self._modules = modules
        self._parameters = parameters
        self.buffers = buffers
        self._scalars = scalars
        self._generators = generators

    def settle(self) -> None:
        """The call is over."""
        self._layer.settle(self)

    @contextmanager
    def rebound(self) -> Iterator[None]:
        """The modules are as before the call; afterwards as they are now."""
        now = [_Attributes(module) for module in self._modules]
        generators = [(generator, generator.get_state()) for generator, _ in self._generators]
        try:
            for parameter in self._parameters:
                bound: dict[str, Any] = parameter.module._parameters
                if bound.get(parameter.name) is not parameter.for_replay(self._layer.name):
                    bound[parameter.name] = parameter.tensor
            for generator, state in self._generators:
                generator.set_state(state)
            with torch.no_grad():
                for module, name, buffer in self.buffers:
                    module._buffers[name] = buffer.for_replay(self._layer.name, name)
            for module, scalars in zip(self._modules, self._scalars, strict=True):
                for name, value in scalars.items():
                    if module.__dict__.get(name, _MISSING) is not value:
                        module.__dict__[name] = value
            yield
        finally:
            for generator, state in generators:
                generator.set_state(state)
            for attributes in now:
                attributes.put_back()


_MISSING = object()


def _scalars(module: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in module.__dict__.items() if type(value) in _SCALARS}


def _generators(module: torch.nn.Module) -> Iterator[torch.Generator]:
    """Random number generators among a module's attributes and in plain containers there."""
    for value in module.__dict__.values():
        if type(value) is torch.Generator:
            yield value
        elif type(value) in _GENERATOR_HOLDERS and 0 < len(value) <= _FEW_ITEMS:
            items = value.values() if type(value) is dict else value
            yield from (item for item in items if type(item) is torch.Generator)


def _is_gathered(module: torch.nn.Module) -> bool:
    """Whether the module's parameters are shards, which FSDP replaces for forward and backward:
    in a replay it has them in place."""
    tensor = sys.modules.get("torch.distributed.tensor")
    sharded = getattr(tensor, "DTensor", None)
    return sharded is not None and any(isinstance(value, sharded) for value in module._parameters.values())


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


class _Attributes:
    """A module's attributes and the plain containers among them, by reference."""

    __slots__ = ("_containers", "_dict", "_module")

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._dict = dict(module.__dict__)
        self._containers = [
            (value, value.copy()) for value in self._dict.values() if type(value) in _CONTAINERS
        ]

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
    if isinstance(container, list):
        if len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
            container[:] = before
    elif isinstance(container, dict):
        if list(container) != list(before) or any(container[key] is not before[key] for key in before):
            container.clear()
            container.update(before)
    elif container != before:
        container.clear()
        container.update(before)
