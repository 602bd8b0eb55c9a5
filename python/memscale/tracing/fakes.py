"""Fake twins of a model's tensors and of its arguments.

A twin has the shape, dtype, device and gradient flag of its original, and no memory. Tensors that
share a storage have twins that share one. The profiler makes one `Twins` for each trace.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ..base.aside import is_tracing
from ..model.shards import Gathered

__all__ = ["Twins", "applied_if_changed", "copy_of_storage", "fake_view", "foreach_as_for", "tensors_in"]

_DEPTH = 6


class Twins:
    """Makes fake twins. A tensor always gets the same twin.

    Args:
        gathered: the parameters that FSDP divides, by their identities; their twins are as gathered. Twins of other
            parts are parts.
    """

    def __init__(self, gathered: Mapping[int, Gathered] | None = None) -> None:
        self._gathered_as = gathered or {}
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._twins: dict[int, torch.Tensor] = {}
        self._originals: list[torch.Tensor] = []  # kept alive, so that their ids stay unique

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The twin of a tensor, without its gradient."""
        twin = self._twins.get(id(tensor))
        if twin is None:
            twin = self._made(tensor)
            if twin.is_leaf:
                twin.grad = None
            self._twins[id(tensor)] = twin
            self._originals.append(tensor)
        return twin

    def _made(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = self._gathered_as.get(id(tensor))
        if gathered is not None:
            return self._gathered(tensor, gathered)
        # A tensor of the caller's graph becomes a leaf, so that backward stops here.
        source = tensor if tensor.is_leaf else tensor.detach().requires_grad_(tensor.requires_grad)
        return self.mode.from_tensor(source)

    def _gathered(self, shard: torch.Tensor, gathered: Gathered) -> torch.Tensor:
        """The twin of a parameter that FSDP has gathered and cast, of which `shard` is one rank's part."""
        layout, dtype = gathered
        with self.mode:
            if layout is None:
                whole = torch.empty(shard.shape, dtype=dtype, device=shard.device)
            else:
                mesh, placements = layout
                whole = torch.distributed.tensor.empty(
                    shard.shape, dtype=dtype, device_mesh=mesh, placements=placements
                )
            return torch.nn.Parameter(whole, requires_grad=shard.requires_grad)

    def stored(self, parameter: torch.Tensor) -> torch.Tensor:
        """The twin of a parameter as an optimizer has it: layers see the type of FSDP's mixed precision."""
        twin = self.of(parameter)
        if id(parameter) not in self._gathered_as or twin.dtype is parameter.dtype:
            return twin
        with self.mode:
            stored = torch.nn.Parameter(torch.empty_like(twin, dtype=parameter.dtype), parameter.requires_grad)
            stored.grad = None if twin.grad is None else torch.empty_like(stored)
        return stored

    def replace(self, value: Any) -> Any:
        """A value with every tensor in it replaced by its twin.

        Plain containers, and mappings that are dataclasses, are rebuilt. Other objects are deep-copied with
        their tensors replaced, so that a forward that changes one (a cache) leaves the caller's object
        alone. Modules, and objects that can't be copied, stay as they are.
        """
        if isinstance(value, torch.Tensor):
            return self.of(value)
        make = getattr(type(value), "_make", None)
        if isinstance(value, tuple) and make is not None:
            return make(map(self.replace, value))
        if type(value) in (list, tuple):
            return type(value)(map(self.replace, value))
        if type(value) is dict:
            return {key: self.replace(item) for key, item in value.items()}
        if isinstance(value, Mapping) and dataclasses.is_dataclass(value):
            return type(value)(**{key: self.replace(item) for key, item in value.items()})
        if isinstance(value, torch.nn.Module):
            return value
        twins = {id(tensor): self.of(tensor) for tensor in tensors_in(value)}
        try:
            return copy.deepcopy(value, twins)
        except Exception:
            return value

    def forget(self) -> None:
        """Releases the twins, also those that torch caches, and torch's weak references to the originals, because
        `torch.utils.swap_tensors()` refuses tensors that have any."""
        self._twins.clear()
        self._originals.clear()
        converter = self.mode.fake_tensor_converter.meta_converter
        converter.tensor_memo.clear()
        converter.storage_memo.clear()
        # Their own clear() asks each weak reference for its object. In torch 2.6 and 2.8 that frees a storage twice
        # if torch still counts weak references to it.
        converter.describer.lookup_tensor.data.clear()
        converter.describer.lookup_storage.data.clear()


def copy_of_storage(size_bytes: int) -> torch.UntypedStorage:
    """A storage without memory, for `fake_view()`."""
    with torch._C._DisableTorchDispatch():
        return torch.empty(size_bytes, dtype=torch.uint8, device="meta").untyped_storage()


def fake_view(
    mode: FakeTensorMode,
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    device: torch.device,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    """A fake tensor of this geometry over a storage of `copy_of_storage()`."""
    with torch._C._DisableTorchDispatch():
        meta = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, size, stride)
        return FakeTensor(mode, meta, device)


@contextmanager
def foreach_as_for(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Lets torch step twins with its `foreach` functions, if it would step the parameters of `optimizer` with
    them. These functions make temporaries as large as all parameters. torch uses them only for certain types of
    tensors, so the type of twins is added to the list."""
    types: list[type] = getattr(import_module("torch.optim.optimizer"), "_foreach_supported_types", [])
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if FakeTensor in types or not all(type(parameter) in types for parameter in parameters):
        yield
        return
    types.append(FakeTensor)
    try:
        yield
    finally:
        types.remove(FakeTensor)


@contextmanager
def applied_if_changed() -> Iterator[None]:
    """Lets a traced forward call `module.to(dtype)` and its kin if they change nothing, as Switch Transformers' router
    does. torch would swap the parameters, which it refuses for twins. If something changes, its error ends the trace.
    """
    original = torch.nn.Module._apply

    def apply(module: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
        tensors = (*module.parameters(recurse), *module.buffers(recurse)) if is_tracing() else (None,)
        if all(tensor is not None and function(tensor) is tensor for tensor in tensors):
            return module
        applied: torch.nn.Module = original(module, function, recurse)  # type: ignore[no-untyped-call]
        return applied

    torch.nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module._apply = original  # type: ignore[method-assign]


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Tensors that a value holds, through containers, mappings and attributes."""
    return _tensors_in(value, depth, set())


def _tensors_in(value: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    """Tensors held by an object, through containers and attributes."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth == 0 or isinstance(value, (str, bytes, int, float, type)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        inner: list[Any] = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        inner = list(value)
    else:
        inner = []
    inner.extend((getattr(value, "__dict__", None) or {}).values())
    for item in inner:
        yield from _tensors_in(item, depth - 1, seen)
