"""The state that a layer's code reaches beside its modules: closures, globals, classes and the objects in them.

A replay of a layer has to find the state of its call in these places: random generators in their states,
counters and averages with their values. Afterwards the replay's changes have to be undone. The search reads the
layer's code: its cells, and the globals that it names. Libraries are not searched, because their state is the
same for all programs.

`memscale.execution.module_state` uses this module around replays, `memscale.model.isolation` around traces.
"""

from __future__ import annotations

import random
import sys
import threading
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

__all__ = ["MISSING", "Place", "Reach", "generator_state", "is_array", "is_state", "read_place", "write_place"]

_CLOSED = frozenset(sys.stdlib_module_names) | {
    *("memscale", "torch", "numpy", "transformers", "torchvision", "torchaudio", "accelerate", "peft", "pytest"),
    *("_pytest", "scipy", "triton", "sympy", "pandas", "datasets", "safetensors", "lightning", "tqdm"),
}
"""Packages whose functions, classes and globals are not searched."""

_SCALARS = (bool, int, float, complex, str, bytes, type(None), tuple)
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_CONTAINERS = (*_MAPPINGS, list, deque, set)
_FEW_ITEMS = 64
"""Containers with more items are not searched; those with more than `_LARGE` are not copied either."""

_LARGE = 4096
_ARRAY_BYTES = 1 << 20
_DEPTH = 6
_PLACES_MOST = 512

_WRITES_FILES = frozenset({"open", "write", "writelines", "write_text", "write_bytes"})
_NUMPYS = ("numpy.random.mtrand", "numpy.random._generator")  # NumPy is optional, so its types are known by name

Place = tuple[Any, str]
"""A dictionary and a key, or an object and an attribute's name."""


class Reach:
    """The places outside of modules in which the code of some modules may find state.

    Args:
        modules: the modules of a layer or of a model.
    """

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        self.places: list[Place] = []
        """Places of scalars, containers and tensors that the code reads by name."""
        self.holders: list[dict[str, Any]] = []
        """Attribute dictionaries of objects, to which a forward may add."""
        self.generators: list[Any] = []
        """Random generators of torch, Python and NumPy."""
        self.modules: list[torch.nn.Module] = []
        """Modules that the code reaches and that are not children."""
        self.obstacle: str | None = None
        """The object or call that prevents the code's state from being restored; None if nothing does."""
        self._inside = {id(module) for module in modules}
        self._seen: set[int] = set()
        for module in modules:
            self._module(module)

    def _module(self, module: torch.nn.Module) -> None:
        kind = type(module)
        for name, value in list(module.__dict__.items()):
            if name in _HOOKS:
                for hook in list(value.values()):
                    self._visit(hook, _DEPTH)
            elif name not in _MODULES_OWN:
                self._visit(value, _DEPTH)
        if not _is_closed(kind):
            self._function(getattr(kind, "forward", None), _DEPTH, module)

    # -- code -----------------------------------------------------------------------------

    def _function(self, function: Any, depth: int, owner: Any = None) -> None:
        code = getattr(function, "__code__", None)
        if depth == 0 or code is None or id(function) in self._seen or _is_closed(function):
            return
        self._seen.add(id(function))
        for cell in function.__closure__ or ():
            self._place(cell, "cell_contents", depth)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(value, depth - 1)
        for name, value in vars(function).items():
            if not name.startswith("__"):
                self._place(vars(function), name, depth)
            del value
        names = set(_names_of(code))
        self._look_at_names(names)
        scope = function.__globals__
        for name in names:
            if name in scope and not name.startswith("__"):
                value = scope[name]
                if isinstance(value, types.ModuleType):
                    self._python_module(value, names, depth)
                else:
                    self._place(scope, name, depth)
            if owner is not None:
                self._of_class(type(owner), name, depth, owner)

    def _look_at_names(self, names: set[str]) -> None:
        found = names & _WRITES_FILES
        if found and self.obstacle is None:
            self.obstacle = f"its code calls {min(found)}()"

    def _of_class(self, kind: type, name: str, depth: int, owner: Any) -> None:
        """Visits the method, or the state of the class, that code finds under `name` on its object."""
        for base in kind.__mro__:
            if name in base.__dict__:
                if _is_closed(base):
                    return
                value = base.__dict__[name]
                if isinstance(value, types.FunctionType):
                    self._function(value, depth - 1, owner)
                elif isinstance(value, (staticmethod, classmethod)):
                    self._function(value.__func__, depth - 1, owner)
                elif isinstance(value, property):
                    self._function(value.fget, depth - 1, owner)
                else:
                    self._place(base, name, depth)
                return

    def _python_module(self, module: types.ModuleType, names: set[str], depth: int) -> None:
        if module.__name__ == "os" and "environ" in names:
            self._place(vars(module.environ), "_data", depth)
        if not _is_closed(module):
            for name in names & vars(module).keys():
                if not isinstance(vars(module)[name], types.ModuleType):
                    self._place(vars(module), name, depth)

    # -- values -----------------------------------------------------------------------------

    def _place(self, holder: Any, name: str, depth: int) -> None:
        value = read_place((holder, name))
        if value is MISSING or len(self.places) >= _PLACES_MOST:
            return
        if is_state(value):
            self.places.append((holder, name))
        self._visit(value, depth)

    def _visit(self, value: Any, depth: int) -> None:
        kind = type(value)
        if depth <= 0 or kind in _SCALARS and kind is not tuple or isinstance(value, torch.Tensor):
            return
        if id(value) in self._seen and not isinstance(value, types.FunctionType):
            return
        if isinstance(value, types.FunctionType):
            self._function(value, depth - 1)
            return
        self._seen.add(id(value))
        if generator_state(value) is not None:
            self.generators.append(value)
        elif kind in _CONTAINERS or kind is tuple:
            self._items(value, depth)
        elif isinstance(value, torch.nn.Module):
            self._foreign_module(value)
        elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
            self._method(value, depth)
        elif isinstance(value, partial):
            for inner in (value.func, *value.args, *value.keywords.values()):
                self._visit(inner, depth - 1)
        elif isinstance(value, weakref.ref):
            self._visit(value(), depth - 1)
        elif isinstance(value, threading.local):
            self._attributes(value.__dict__, depth)
        elif isinstance(value, Iterator) and self.obstacle is None and not hasattr(value, "fileno"):
            self.obstacle = f"its code reaches an iterator ({kind.__name__})"
        elif kind.__module__ == "torch.quasirandom" and self.obstacle is None:
            self.obstacle = f"its code reaches a {kind.__name__}"
        elif isinstance(value, type):
            return
        elif not _is_closed(kind):
            self._object(value, depth)

    def _method(self, value: Any, depth: int) -> None:
        owner = value.__self__
        if isinstance(value, types.MethodType):
            self._function(value.__func__, depth - 1, owner)
        if not isinstance(owner, (types.ModuleType, torch.nn.Module)):
            self._visit(owner, depth - 1)

    def _items(self, value: Any, depth: int) -> None:
        if len(value) > _FEW_ITEMS:
            return
        if isinstance(value, dict):
            for key, item in list(value.items()):
                if is_state(item) and type(item) not in _SCALARS:
                    self._item(value, key, depth)
                else:
                    self._visit(item, depth - 1)
        else:
            for item in list(value):
                self._visit(item, depth - 1)

    def _item(self, holder: Any, key: Any, depth: int) -> None:
        if len(self.places) < _PLACES_MOST:
            self.places.append((holder, key))
        self._visit(holder[key], depth - 1)

    def _object(self, value: Any, depth: int) -> None:
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict:
            self._attributes(attributes, depth)
        for base in type(value).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else tuple(slots):
                if not name.startswith("__"):
                    self._place(value, name, depth - 1)
        call = vars(type(value)).get("__call__")
        for method in vars(type(value)).values():
            if isinstance(method, types.FunctionType) and (method is call or depth > 2):
                self._function(method, depth - 2, value)

    def _attributes(self, attributes: dict[str, Any], depth: int) -> None:
        if len(attributes) <= _FEW_ITEMS:
            self.holders.append(attributes)
            for name in list(attributes):
                self._place(attributes, name, depth - 1)

    def _foreign_module(self, module: torch.nn.Module) -> None:
        """Visits a module that is not a child, such as one in a closure. Of a parent, only its own attributes
        are searched."""
        parts = list(module.modules())
        if id(module) in self._inside:
            return
        is_around = any(id(part) in self._inside for part in parts)
        for part in [module] if is_around else parts:
            if id(part) not in self._inside:
                self._inside.add(id(part))
                self.modules.append(part)
                if not is_around:
                    self._module(part)
                else:
                    for name, value in list(part.__dict__.items()):
                        if name not in _MODULES_OWN:
                            self._visit(value, 2)


MISSING = object()
_MODULES_OWN = frozenset(torch.nn.Module().__dict__)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def read_place(place: Place) -> Any:
    """The value at a place; `MISSING` if there is none."""
    holder, name = place
    if type(holder) is dict or isinstance(holder, dict):
        return holder.get(name, MISSING)
    try:
        return getattr(holder, name)
    except (AttributeError, ValueError):  # an empty cell
        return MISSING


def write_place(place: Place, value: Any) -> None:
    """Puts a value at a place, without running code of the holder's class."""
    holder, name = place
    if isinstance(holder, dict):
        holder[name] = value
    elif isinstance(holder, type):
        type.__setattr__(holder, name, value)
    else:
        object.__setattr__(holder, name, value)


def is_state(value: Any) -> bool:
    """Whether a forward may keep state, such as a counter, in `value` or in its place."""
    kind = type(value)
    if kind in _CONTAINERS:
        return len(value) <= _LARGE
    if isinstance(value, torch.Tensor):
        return type(value) is torch.Tensor and value.is_leaf and not value.requires_grad and not value.is_inference()
    return kind in _SCALARS or is_array(value)


def is_array(value: Any) -> bool:
    """Whether `value` is a small NumPy array of numbers, in which a forward may keep statistics."""
    kind = type(value)
    is_numpys = kind.__name__ == "ndarray" and kind.__module__ == "numpy"
    return is_numpys and value.nbytes <= _ARRAY_BYTES and not value.dtype.hasobject


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _is_closed(value: Any) -> bool:
    name = getattr(value, "__module__", None) if not isinstance(value, types.ModuleType) else value.__name__
    return not isinstance(name, str) or name.partition(".")[0] in _CLOSED


def generator_state(value: Any) -> tuple[Any, Any] | None:
    """The functions that read and restore a random generator's state; None for any other value."""
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
        return partial(getattr, bits, "state"), partial(setattr, bits, "state")
    return None
