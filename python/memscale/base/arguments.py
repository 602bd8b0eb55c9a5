"""The arguments of a layer's call, kept so that the call can be repeated.

Containers are copied at the call, because a layer may append to a list among its arguments. Tensors
are held without their graph and with their version, or as a handle on the lower tier.
`memscale.execution.replay` uses this module.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from ..errors import IntegrationError
from .walk import version_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Arguments", "Pattern", "plain_tensors"]

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    enum.Enum,
    range,
    slice,
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


_PLAIN_OR_TYPE = (*_PLAIN, type)
_SCALARS = frozenset({bool, int, float, str, type(None)})
"""Most of the plain values; a set is asked in a tenth of the time that `isinstance()` takes for all."""


class _Opaque(Exception):
    """An argument has state that a second call could change."""


class _Tensor:
    """One tensor argument."""

    __slots__ = ("handle", "is_copy", "is_passed_on", "layout", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        # A tensor without gradient has no graph and a parameter is a leaf, so both are passed on
        # unchanged. Other tensors are detached, so that no record keeps a graph alive.
        self.is_passed_on = not tensor.requires_grad or (
            type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)
        )
        self.tensor: torch.Tensor | None = tensor if self.is_passed_on else tensor.detach()
        self.version = version_of(tensor)
        self.handle: Any = None
        self.is_copy = False
        self.layout: Any = None  # the layout of the tensor, once released by drop_first()


class Arguments:
    """A frozen copy of positional and keyword arguments."""

    __slots__ = ("_leaves", "_tree")

    def __init__(self, tree: Any, leaves: list[_Tensor]) -> None:
        self._tree = tree
        self._leaves = leaves

    @classmethod
    def freeze(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """Copies the arguments; None if one is not plain data (a cache, a module, ...)."""
        freezer = _Freezer()
        try:
            tree = freezer.freeze((args, kwargs))
        except _Opaque:
            return None
        return cls(tree, freezer.leaves)

    @property
    def has_tensors(self) -> bool:
        """Whether there is a tensor from which the layer can be replayed."""
        return bool(self._leaves)

    def tensors(self) -> list[torch.Tensor]:
        """The tensors held in memory."""
        return [leaf.tensor for leaf in self._leaves if leaf.tensor is not None]

    def copy_first(self) -> None:
        """Copies the first tensor that needs a gradient, in case the layer writes to it."""
        for leaf in self._leaves:
            if leaf.tensor is not None and not leaf.is_passed_on:
                leaf.tensor = leaf.tensor.clone()
                leaf.version = leaf.tensor._version
                leaf.is_copy = True
                return

    def is_first(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is held as the first argument."""
        first = self._leaves[0].tensor if self._leaves else None
        return first is not None and first.data_ptr() == tensor.data_ptr() and first.shape == tensor.shape

    def drop_first(self) -> None:
        """Releases the first tensor; `put_first()` supplies it again."""
        leaf = self._leaves[0]
        if leaf.tensor is not None:
            leaf.layout = _layout(leaf.tensor)
            leaf.tensor = None

    @property
    def lacks_first(self) -> bool:
        """Whether the first tensor was released and not supplied again."""
        return bool(self._leaves) and self._leaves[0].tensor is None and self._leaves[0].handle is None

    def put_first(self, tensor: torch.Tensor, layer: str) -> None:
        """Supplies the first tensor again.

        Raises:
            IntegrationError: it differs from the released one.
        """
        leaf = self._leaves[0]
        if _layout(tensor) != leaf.layout:
            raise IntegrationError(
                f"layer {layer}: the layer before it gave {_describe(tensor)} when it ran again, and another "
                "tensor in forward; set enable_checkpointing=False"
            )
        leaf.tensor = tensor
        leaf.version = tensor._version

    def offload(self, send: Callable[[torch.Tensor], Any]) -> None:
        """Passes each tensor to `send`, which returns a handle, or None if the tensor stays."""
        for leaf in self._leaves:
            if leaf.tensor is None or isinstance(leaf.tensor, torch.nn.Parameter):
                continue
            handle = send(leaf.tensor)
            if handle is not None:
                leaf.handle = handle
                leaf.is_passed_on = not leaf.tensor.requires_grad and leaf.is_passed_on
                leaf.tensor = None

    def thaw(self, layer: str, fetch: Callable[[Any], torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """New arguments for another call. Each tensor is a leaf with its original `requires_grad`.

        Raises:
            IntegrationError: a tensor was changed in place since the forward.
        """
        made: dict[int, torch.Tensor] = {}
        for leaf in self._leaves:
            made[id(leaf)] = _leaf_for_replay(leaf, layer, fetch)
        args, kwargs = _thaw(self._tree, made)
        return args, kwargs


def _leaf_for_replay(leaf: _Tensor, layer: str, fetch: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    if leaf.tensor is None:
        tensor = fetch(leaf.handle)
        return _leaf_of(leaf, tensor) if not leaf.is_passed_on else tensor
    if leaf.version is not None and leaf.tensor._version != leaf.version:
        raise IntegrationError(
            f"layer {layer}: an argument ({_describe(leaf.tensor)}) was changed in place after the layer's "
            f"forward began (version {leaf.version}, now {leaf.tensor._version}), so that the layer can't be "
            "recomputed from it; make the change out of place, or set enable_checkpointing=False"
        )
    if leaf.is_passed_on:
        return leaf.tensor
    return _leaf_of(leaf, leaf.tensor.detach())


def _leaf_of(leaf: _Tensor, tensor: torch.Tensor) -> torch.Tensor:
    tensor.requires_grad_()
    if not leaf.is_copy:
        return tensor
    with torch.enable_grad():
        return tensor.clone()  # torch forbids an in-place write to a leaf, so the layer gets a copy


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


class Pattern:
    """Arguments of a call with something else in place of their tensors.

    Args:
        make_leaf: returns what stands for a tensor. It is called once for each tensor object.
    """

    __slots__ = ("_tree", "leaves")

    def __init__(self, tree: Any, leaves: list[Any]) -> None:
        self._tree = tree
        self.leaves = leaves

    @classmethod
    def of(
        cls, args: tuple[Any, ...], kwargs: dict[str, Any], make_leaf: Callable[[torch.Tensor], Any]
    ) -> Pattern | None:
        """None if an argument is not plain data."""
        freezer = _Freezer(make_leaf)
        try:
            return cls(freezer.freeze((args, kwargs)), freezer.leaves)
        except _Opaque:
            return None

    def filled(self, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these tensors, one for each leaf."""
        made = {id(leaf): tensor for leaf, tensor in zip(self.leaves, tensors, strict=True)}
        args, kwargs = _thaw(self._tree, made)
        return args, kwargs

    def __repr__(self) -> str:
        return repr(self._tree)


class _Freezer:
    def __init__(self, make_leaf: Callable[[torch.Tensor], Any] = _Tensor) -> None:
        self.leaves: list[Any] = []
        self._known: dict[int, Any] = {}
        self._make_leaf = make_leaf

    def freeze(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is tuple or kind is list:
            return kind(map(self.freeze, value)) if value else kind()
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, _PLAIN_OR_TYPE):
            return value
        if kind is dict or kind is OrderedDict:
            return kind((key, self.freeze(item)) for key, item in value.items())
        if isinstance(value, tuple) and hasattr(kind, "_make"):
            return _Named(kind, tuple(map(self.freeze, value)))
        if dataclasses.is_dataclass(kind):
            return _Record(kind, {f.name: self.freeze(getattr(value, f.name)) for f in dataclasses.fields(kind)})
        raise _Opaque

    def _tensor(self, tensor: torch.Tensor) -> Any:
        known = self._known.get(id(tensor))
        if known is None:
            known = self._known[id(tensor)] = self._make_leaf(tensor)
            self.leaves.append(known)
        return known


class _Named:
    """A named tuple. Its class may check its items, as packed sequences do, and would refuse the
    placeholders of tensors."""

    __slots__ = ("items", "kind")

    def __init__(self, kind: Any, items: tuple[Any, ...]) -> None:
        self.kind = kind
        self.items = items


class _Record:
    """A dataclass instance, such as the output of another model."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: type, fields: dict[str, Any]) -> None:
        self.kind = kind
        self.fields = fields


def _thaw(value: Any, made: dict[int, torch.Tensor]) -> Any:
    kind = type(value)
    if id(value) in made:
        return made[id(value)]
    if kind is tuple or kind is list:
        return kind(_thaw(item, made) for item in value)
    if kind is dict or kind is OrderedDict:
        return kind((key, _thaw(item, made)) for key, item in value.items())
    if kind is _Record:
        return value.kind(**{name: _thaw(item, made) for name, item in value.fields.items()})
    if kind is _Named:
        return value.kind._make(_thaw(item, made) for item in value.items)
    return value


def plain_tensors(value: Any) -> list[torch.Tensor]:
    """Tensors in lists, tuples, mappings and dataclasses nested in each other."""
    found: list[torch.Tensor] = []
    _collect(value, found, 0)
    return found


def _collect(value: Any, found: list[torch.Tensor], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif depth > 8:
        return
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found, depth + 1)
    elif hasattr(value, "items") and callable(value.items):
        for _, item in value.items():
            _collect(item, found, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in vars(value).values():
            _collect(item, found, depth + 1)
