"""Watches everything that a layer's code may write, while the layer runs a second time.

`Reach` finds the state that a replay restores, at every replay. It has limits, because it must be quick: of depth, of
size, of kinds. A `Witness` has nearly none. It notes the content of all that can be reached from some modules, lets an
`Undo` put it back, and says what a run changed. Replays have one at their first runs (`memscale.execution.replay`), and
a layer that changes something is not recomputed again; traces have one, too (`memscale.model.isolation`).

Two kinds of changes escape it: those of a library's own objects, and those that later calls make first.
"""

from __future__ import annotations

import functools
import gc
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _core
from ..base.environment import without_modes
from .reach import (
    MISSING,
    generator_state,
    has_content,
    is_closed,
    is_container,
    is_opened,
    names_of,
    note_generator,
    operator_function,
    operators_named,
    read_place,
    stored_by,
)

__all__ = ["Witness"]

_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None), range, slice, torch.Size, torch.dtype})
_OBJECTS_MOST = 50_000
_ITEMS_MOST = 1 << 18
_FEW_ITEMS = 4096
"""Larger containers are compared, but what is in them is not searched."""

_COPIES_MOST_BYTES = 4 << 20
"""Bytes of arrays and tensors that are copied. Further tensors are compared by version."""

_SMALL_BYTES = 64 << 10
"""Larger buffers of the watched modules are compared by version: replays write to copies that others make, and no plan
counts those of a witness."""

_ALL_NAMES = frozenset({"globals", "eval", "exec", "modules", "__globals__"})
"""Names in code that may read globals which it does not name."""

_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_AROUND = (staticmethod, classmethod, property, functools.cached_property, functools._lru_cache_wrapper)
_INNER = ("fget", "fset", "func", "__func__", "__wrapped__")  # functions in those


class Witness:
    """The content of what modules and their code reach, as it was when this was made.

    Args:
        undo: puts the content back when it ends.
        modules: the modules, children included.
    """

    def __init__(self, undo: Any, modules: Iterable[torch.nn.Module]) -> None:
        self._undo = undo
        self._own = {id(module) for module in modules}
        self._restored = {id(buffer) for module in modules for buffer in module._buffers.values()}
        self._seen: dict[int, Any] = {}  # with the objects, so that no number is given twice
        self._waiting: list[tuple[Any, str]] = []
        self._slots: list[tuple[Any, str, Any, str]] = []
        self._contents: list[tuple[Any, Any, str]] = []
        self._arrays: list[tuple[Any, Any, str]] = []
        self._tensors: list[tuple[torch.Tensor, int, torch.Tensor | None, str]] = []
        self._generators: list[tuple[Any, Any, str]] = []
        self._copied_bytes = 0
        for module in modules:
            self._waiting.append((module, type(module).__name__))
        _core.guarded(_plainly, self._search)

    def _search(self) -> None:
        while self._waiting and len(self._seen) < _OBJECTS_MOST:
            self._visit(*self._waiting.pop())

    def change(self) -> str | None:
        """The name of something that has changed; None if nothing has. Changed tensors are restored."""
        found: str | None = _core.guarded(_plainly, self._change)
        return found

    def _change(self) -> str | None:
        found = [name for holder, key, value, name in self._slots if read_place((holder, key)) is not value]
        found += [name for value, copy, name in self._contents if not _is_same(_core.content(value), copy)]
        for array, copy, name in self._arrays:
            if _bytes_of(array) != _bytes_of(copy):
                found.append(name)
                self._undo.later(array.__setitem__, Ellipsis, copy)
        for tensor, version, copy, name in self._tensors:
            if not (tensor._version == version if copy is None else _has_bytes(tensor, copy)):
                found.append(name)
                if copy is not None:
                    tensor.copy_(copy)
        found += [name for read, state, name in self._generators if not _is_same(read(), state)]
        return found[0] if found else None

    # -- the search -------------------------------------------------------------------------

    def _visit(self, value: Any, name: str) -> None:
        kind = type(value)
        if kind in _SCALARS or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._tensor(value, name)
        elif isinstance(value, torch.nn.Module):
            self._module(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._add((value.__func__, name), (value.__self__, name))
        elif isinstance(value, functools.partial):
            self._add(*((inner, name) for inner in (value.func, *value.args, *value.keywords.values())))
        elif isinstance(value, weakref.ref):
            self._add((value(), name))
        elif isinstance(value, types.MappingProxyType):
            self._add(*((inner, name) for inner in gc.get_referents(value)))
        elif isinstance(value, memoryview):
            self._add((value.obj, name))
        elif kind.__name__ == "ndarray" and kind.__module__ == "numpy":
            self._array(value, name)
        elif (state := generator_state(value)) is not None:
            self._generators.append((state[0], state[0](), name))
            note_generator(self._undo, value)
        elif is_container(value) or isinstance(value, tuple):
            self._items(value, name)
        elif has_content(value):
            self._content(value, name)
        elif kind.__name__.startswith("LP_") and hasattr(kind, "contents"):
            if value:  # a pointer of ctypes that is not NULL
                self._add((value.contents, name))
        elif isinstance(value, _AROUND):
            self._add(*((getattr(value, inner, None), name) for inner in _INNER))
        elif (own := operator_function(value)) is not None:
            self._add((own, name))
        elif not is_closed(kind) or is_opened(value) or isinstance(value, threading.local):
            self._object(value, name)

    def _add(self, *found: tuple[Any, str]) -> None:
        self._waiting.extend(found)

    def _slot(self, holder: Any, key: str) -> None:
        """Notes a place by name, and visits what it holds."""
        value = read_place((holder, key))
        self._undo.slot(holder, key)
        self._slots.append((holder, key, value, key))
        if value is not MISSING:
            self._add((value, key))

    def _content(self, value: Any, name: str) -> None:
        self._undo.content(value)
        self._contents.append((value, _core.content(value), name))

    def _items(self, value: Any, name: str) -> None:
        if len(value) > _ITEMS_MOST:
            return
        if not isinstance(value, tuple):
            self._content(value, name)
        items = value.values() if isinstance(value, dict) else value
        if len(value) > _FEW_ITEMS:
            return
        self._add(*((item, name) for item in list(items) if type(item) not in _SCALARS))
        if type(value).__module__ != "builtins":
            self._object(value, name)

    def _object(self, value: Any, name: str) -> None:
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and id(attributes) not in self._seen:
            self._seen[id(attributes)] = attributes
            self._content(attributes, name)
            self._add(*((item, key) for key, item in list(attributes.items())))
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for key in (slots,) if isinstance(slots, str) else tuple(slots):
                if not key.startswith("__"):
                    self._slot(value, key)
        self._add((type(value), name))

    def _module(self, module: torch.nn.Module) -> None:
        """Visits a module's attributes. Those of the layer's own modules are restored by others."""
        is_own = id(module) in self._own
        for name, value in list(module.__dict__.items()):
            if name.startswith("_memscale") or name in _BACKWARD:
                continue
            if is_own or name in _MODULES_OWN:
                self._add((value, name)) if name not in _TABLES else self._add(*((v, k) for k, v in value.items()))
            else:
                self._slot(module.__dict__, name)
        self._add((type(module), type(module).__name__))

    def _class(self, kind: type) -> None:
        """Visits the attributes and methods of a class, and those that its methods write."""
        if is_closed(kind):
            return
        written: set[str] = set()
        for base in kind.__mro__:
            if is_closed(base):
                continue
            for name, value in list(vars(base).items()):
                code = getattr(getattr(value, "__func__", value), "__code__", None)
                if code is not None:
                    written.update(stored_by(code))
                if code is not None or name.startswith("__") or hasattr(type(value), "__get__"):
                    self._add((value, name))
                else:
                    self._slot(base, name)
        for name in written:
            if not any(name in vars(base) for base in kind.__mro__):
                self._undo.slot(kind, name)
                self._slots.append((kind, name, MISSING, name))
        if type(kind) is not type:
            self._add((type(kind), kind.__name__))

    def _function(self, function: Any) -> None:
        if is_closed(function):
            return
        for cell in function.__closure__ or ():
            self._slot(cell, "cell_contents")
        for name in ("__defaults__", "__kwdefaults__"):
            self._slot(function, name)
        if function.__dict__:
            self._content(function.__dict__, function.__name__)
            self._add(*((item, key) for key, item in function.__dict__.items()))
        scope = function.__globals__
        names = set(names_of(function.__code__))
        self._add(*((own, own.__name__) for own in operators_named(names)))
        if names & _ALL_NAMES:
            names |= {name for name, value in scope.items() if not isinstance(value, (type, types.FunctionType))}
        for name in names & scope.keys():
            value = scope[name]
            if not name.startswith("__") and not isinstance(value, types.ModuleType):
                self._slot(scope, name)
            elif isinstance(value, types.ModuleType):
                self._python_module(value, names)

    def _python_module(self, module: types.ModuleType, names: set[str]) -> None:
        """Visits what code finds in a Python module. Of a library, only numbers and containers: somebody else's."""
        scope = vars(module)
        for name in names & scope.keys():
            value = scope[name]
            if type(value) in _SCALARS or is_container(value) or not (is_closed(module) or _is_module(value)):
                self._slot(scope, name)
            elif isinstance(value, type):
                self._closed_class(value, names)

    def _closed_class(self, kind: type, names: set[str]) -> None:
        """Notes the numbers and containers of a library's class that code names."""
        for name in names & vars(kind).keys():
            value = vars(kind)[name]
            if type(value) in _SCALARS or is_container(value):
                self._slot(kind, name)

    # -- values that are copied ---------------------------------------------------------------

    def _has_room(self, nbytes: int) -> bool:
        if self._copied_bytes + nbytes > _COPIES_MOST_BYTES:
            return False
        self._copied_bytes += nbytes
        return True

    def _array(self, array: Any, name: str) -> None:
        if not array.dtype.hasobject and array.flags.writeable and self._has_room(array.nbytes):
            self._arrays.append((array, array.copy(), name))
        elif array.dtype.hasobject and array.size <= _ITEMS_MOST:
            self._arrays.append((array, array.copy(), name))
            self._add(*((item, name) for item in array.flat))
        self._add((array.base, name))

    def _tensor(self, tensor: torch.Tensor, name: str) -> None:
        if type(tensor) not in _TENSORS or tensor.requires_grad or tensor.is_inference() or tensor.is_quantized:
            return
        if tensor.layout is not torch.strided:
            if tensor.layout is torch.sparse_coo:
                self._tensor(tensor._values(), name)
            return
        is_restored = id(tensor) in self._restored and tensor.nbytes > _SMALL_BYTES
        is_copied = tensor.device.type == "cpu" and not is_restored and self._has_room(tensor.nbytes)
        copy = tensor.detach().clone(memory_format=torch.contiguous_format) if is_copied else None
        self._tensors.append((tensor, tensor._version, copy, name))


_MODULES_OWN = frozenset(torch.nn.Module().__dict__)
_TABLES = ("_buffers", "_parameters", "_modules")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")


def _plainly(undo: Any, function: Callable[[], Any]) -> Any:
    """Calls `function()` without gradients and without anybody's modes, which may count operators."""
    without_modes(undo)
    with torch.no_grad():
        return function()


def _is_same(a: Any, b: Any, depth: int = 3) -> bool:
    """Whether two copies of one container hold the very same objects, or two states the same numbers."""
    if a is b or depth == 0:
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        pairs = zip(a.items(), b.items(), strict=False)
        return len(a) == len(b) and all(x is y and _is_same(v, w, depth - 1) for (x, v), (y, w) in pairs)
    if isinstance(a, (set, bytes, bytearray, int, float, str)):
        return type(a) is type(b) and bool(a == b)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and _has_bytes(a, b)
    if hasattr(a, "tobytes"):
        return type(a) is type(b) and bool(a.tobytes() == b.tobytes())
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(_is_same(x, y, depth - 1) for x, y in zip(a, b, strict=False))
    return False


def _is_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType)


def _has_bytes(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether a tensor has the bytes of its copy. NaN equals itself."""
    if tensor.shape != copy.shape:
        return False
    try:
        now, then = (value.detach().contiguous().reshape(-1).view(torch.uint8) for value in (tensor, copy))
        return bool(torch.equal(now, then))
    except (RuntimeError, NotImplementedError):  # of a layout or a transform without bytes
        return tensor is copy


def _bytes_of(array: Any) -> Any:
    return [id(item) for item in array.flat] if array.dtype.hasobject else array.tobytes()
