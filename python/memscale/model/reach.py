"""The state that a layer's code reaches beside its modules: closures, globals, classes and the objects in them.

A replay of a layer has to find the state of its call in these places: random generators in their states,
counters and averages with their values. Afterwards the replay's changes have to be undone. The search reads the
layer's code: its cells, and the globals that it names. Libraries are not searched, because their state is the
same for all programs.

`memscale.execution.module_state` uses this module around replays, `memscale.model.isolation` around traces.
"""

from __future__ import annotations

import dis
import enum
import functools
import gc
import io
import logging
import random
import sys
import threading
import types
import weakref
from collections import Counter, OrderedDict, UserDict, UserList, UserString, defaultdict, deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch

from ..generators import python_setters

__all__ = [
    "MISSING",
    "Place",
    "Reach",
    "generator_state",
    "has_content",
    "is_array",
    "is_closed",
    "is_container",
    "is_opened",
    "is_state",
    "names_of",
    "note_generator",
    "operator_function",
    "operators_named",
    "read_place",
    "set_generator",
    "stored_by",
    "write_place",
]

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

_WRITES_FILES = frozenset(
    {
        *("open", "write", "writelines", "write_text", "write_bytes", "writerow", "writerows", "tofile"),
        *("mkdir", "touch", "rmdir", "unlink", "add_scalar", "add_scalars", "add_histogram", "add_image"),
    }
)
"""Functions and methods that change files, whatever object they belong to."""

_CHANGES = {
    "torch": frozenset({"save"}),
    "numpy": frozenset({"save", "savez", "savez_compressed", "savetxt"}),
    "pickle": frozenset({"dump"}),
    "json": frozenset({"dump"}),
    "os": frozenset(
        {
            *("mkdir", "makedirs", "remove", "unlink", "rename", "renames", "replace", "rmdir", "removedirs", "link"),
            *("symlink", "truncate", "system", "popen", "kill", "putenv", "chdir", "getcwd", "getcwdb"),
        }
    ),
    "shutil": frozenset({"copy", "copy2", "copyfile", "copytree", "move", "rmtree"}),
    "subprocess": frozenset({"run", "call", "check_call", "check_output", "Popen"}),
    "posix": frozenset({"getcwd", "getcwdb"}),  # where those of os come from
}
"""Functions of libraries that change what no undo can restore, or read the working directory, which a loop may change
for its forward."""

_CALLERS = frozenset({"_getframe", "currentframe", "extract_stack", "format_stack", "walk_stack"})
_CALLERS_OF = {"inspect": frozenset({"stack"}), "sys": frozenset(), "traceback": frozenset({"print_stack"})}
"""Functions of these modules that show code its callers, by which it could tell a replay. Libraries use them for their
logs."""

_LASTING = frozenset(
    {
        *("sqlite3", "socket", "ssl", "subprocess", "multiprocessing", "_queue", "mmap", "shelve", "dbm", "_csv"),
        *("zipfile", "tarfile", "gzip", "bz2", "lzma", "http", "urllib", "smtplib", "ftplib", "selectors"),
    }
)
"""Libraries whose objects can't be restored."""

_OPENED = (
    *(UserDict, UserList, UserString, types.SimpleNamespace, threading.Semaphore, threading.Event),
    *(weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, torch.optim.Optimizer),
)
_OPENED_NAMES = frozenset({"queue.Queue", "argparse.Namespace", "collections.ChainMap", "tqdm.std.tqdm"})
"""Classes of libraries whose objects' attributes are searched."""

_LOGS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_NUMPYS = ("numpy.random.mtrand", "numpy.random._generator")  # NumPy is optional, so its types are known by name

Place = tuple[Any, str]
"""A dictionary and a key, or an object and an attribute's name."""


class Reach:
    """The places outside modules in which the code of some modules may find state.

    Args:
        modules: the modules of a layer or of a model.
        objects: other objects whose state belongs to theirs, such as modes.
    """

    def __init__(self, modules: list[torch.nn.Module], objects: Iterable[Any] = ()) -> None:
        self.places: list[Place] = []
        """Places of scalars, containers and tensors that the code reads by name."""
        self.holders: list[dict[str, Any]] = []
        """Attribute dictionaries of objects, to which a forward may add."""
        self.generators: list[Any] = []
        """Random generators of torch, Python and NumPy."""
        self.modules: list[torch.nn.Module] = []
        """Modules that the code reaches and that are not children."""
        self.caches: list[Place] = []
        """Places of functions that `functools` caches."""
        self.printing: list[dict[str, Any]] = []
        """Globals of code that calls `print()`."""
        self.warns = False
        """Whether the code gives warnings."""
        self.obstacle: str | None = None
        """The object or call that prevents the code's state from being restored; None if nothing does."""
        self._loggers: list[logging.Logger] = []
        self._logger_names: set[str] = set()
        self._marks = False  # whether the code may put attributes on parameters
        self._inside = {id(module) for module in modules}
        self._seen: set[int] = set()
        for module in modules:
            self._module(module)
        for value in objects:
            self._object(value, _DEPTH)
        if self._marks:
            for module in modules:
                for parameter in module._parameters.values():
                    if parameter is not None:
                        self._attributes(parameter.__dict__, 2)

    @property
    def is_silent(self) -> bool:
        """Whether the code neither prints nor logs nor warns."""
        return not (self.warns or self.printing or self._loggers or self._logger_names)

    @property
    def loggers(self) -> list[logging.Logger]:
        """The loggers that the code has or names."""
        known = logging.root.manager.loggerDict if self._logger_names else {}
        named = [known.get(name) for name in self._logger_names]
        return [*self._loggers, *(logger for logger in named if isinstance(logger, logging.Logger))]

    def size(self) -> int:
        """The number of attributes and cached results that were found. If it has changed, there may be more to find."""
        functions = [read_place(place) for place in self.caches]
        cached = sum(int(function.cache_info().currsize) for function in functions if function is not MISSING)
        return cached + sum(map(len, self.holders))

    def _module(self, module: torch.nn.Module) -> None:
        kind = type(module)
        attributes: dict[str, Any] = module.__dict__
        for name, value in list(attributes.items()):
            if name in _HOOKS:
                for hook in list(value.values()):
                    self._visit(hook, _DEPTH)
            elif name not in _MODULES_OWN:
                if type(value) not in _CONTAINERS and has_content(value):
                    self._place(attributes, name, _DEPTH)  # module_state only knows the exact classes
                else:
                    self._visit(value, _DEPTH)
        if not is_closed(kind):
            self._function(getattr(kind, "forward", None), _DEPTH, module)

    # -- code -----------------------------------------------------------------------------

    def _function(self, function: Any, depth: int, owner: Any = None) -> None:
        code = getattr(function, "__code__", None)
        if depth == 0 or code is None or id(function) in self._seen or is_closed(function):
            return
        self._seen.add(id(function))
        names = set(names_of(code))
        scope = function.__globals__
        self._look_at_names(names, code, scope, owner)
        for own in operators_named(names):
            self._function(own, depth - 1)
        for cell in function.__closure__ or ():
            self._place(cell, "cell_contents", depth, names)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._member(value, depth)
        for name in list(vars(function)):
            if not name.startswith("__"):
                self._place(vars(function), name, depth)
        for name in names:
            if name in scope and not name.startswith("__"):
                value = scope[name]
                if isinstance(value, types.ModuleType):
                    self._python_module(value, names, depth)
                    self._look_at_callers(value.__name__, names, code)
                else:
                    self._look_at_callers(getattr(value, "__module__", None), {getattr(value, "__name__", "")}, code)
                    self._look_at_function(value)
                    self._place(scope, name, depth, names)
            if owner is not None:
                self._of_class(owner if isinstance(owner, type) else type(owner), name, depth, owner)

    def _look_at_names(self, names: set[str], code: types.CodeType, scope: dict[str, Any], owner: Any) -> None:
        found = names & _WRITES_FILES
        if found:
            self._hold(f"its code calls {min(found)}()")
        if "print" in names and "print" not in scope and not any(known is scope for known in self.printing):
            self.printing.append(scope)
        self.warns = self.warns or "warn" in names
        if names & {"getLogger", "get_logger"}:
            self._logger_names.update(_strings_of(code), [str(scope.get("__name__"))])
        if not self._marks:
            self._marks = "setattr" in names or any(not _has(owner, name) for name in stored_by(code))

    def _look_at_function(self, value: Any) -> None:
        """Looks at a library's function that was imported by its own name, such as `from torch import save`."""
        library = str(getattr(value, "__module__", None)).partition(".")[0]
        if library in _CHANGES and getattr(value, "__name__", None) in _CHANGES[library]:
            self._hold(f"its code calls {value.__name__}()")

    def _look_at_callers(self, library: Any, names: set[str], code: types.CodeType) -> None:
        if library in _CALLERS_OF and "site-packages" not in code.co_filename:
            found = names & (_CALLERS | _CALLERS_OF[library])
            if found:
                self._hold(f"its code looks at its callers by {library}.{min(found)}()")

    def _hold(self, obstacle: str) -> None:
        if self.obstacle is None:
            self.obstacle = obstacle

    def _of_class(self, kind: type, name: str, depth: int, owner: Any) -> None:
        """Visits the method, or the state of the class, that code finds under `name` on its object."""
        for base in kind.__mro__:
            if name in base.__dict__:
                if is_closed(base):
                    return
                value = base.__dict__[name]
                if isinstance(value, types.FunctionType):
                    self._function(value, depth - 1, owner)
                elif isinstance(value, (staticmethod, classmethod)):
                    self._function(value.__func__, depth - 1, owner)
                elif isinstance(value, property):
                    self._function(value.fget, depth - 1, owner)
                elif isinstance(value, functools.cached_property):
                    self._function(value.func, depth - 1, owner)
                else:
                    self._place(base, name, depth)
                return

    def _class(self, kind: type, names: set[str], depth: int) -> None:
        """Visits what code finds under `names` in a class that it names itself."""
        if depth <= 0 or is_closed(kind):
            return
        run = {"forward", "setup_context"} if issubclass(kind, torch.autograd.Function) else set()
        if not issubclass(kind, torch.nn.Module):
            run |= {"__init__", "__enter__", "__exit__"}
        for name in names | run:
            self._of_class(kind, name, depth, kind)

    def _python_module(self, module: types.ModuleType, names: set[str], depth: int) -> None:
        changes = _CHANGES.get(module.__name__, frozenset()) & names
        if changes:
            self._hold(f"its code calls {module.__name__}.{min(changes)}()")
        if module.__name__ == "os" and names & {"environ", "getenv"}:
            self._place(vars(module.environ), "_data", depth)
        if module.__name__ == "logging" and names & _LOGS:
            self._loggers.append(logging.root)
        if not is_closed(module):
            for name in names & vars(module).keys():
                if not isinstance(vars(module)[name], types.ModuleType):
                    self._place(vars(module), name, depth, names)

    # -- values -----------------------------------------------------------------------------

    def _place(self, holder: Any, name: str, depth: int, names: set[str] | None = None) -> None:
        value = read_place((holder, name))
        if value is MISSING or len(self.places) >= _PLACES_MOST:
            return
        if is_state(value):
            self.places.append((holder, name))
        elif isinstance(value, functools._lru_cache_wrapper):
            self.caches.append((holder, name))
        if names is not None and isinstance(value, type):
            self._class(value, names, depth - 1)
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
        elif is_container(value) or isinstance(value, tuple):
            self._items(value, depth)
            if kind not in _CONTAINERS and not isinstance(value, tuple):
                self._object(value, depth)
        elif isinstance(value, torch.nn.Module):
            self._foreign_module(value)
        elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
            self._method(value, depth)
        elif isinstance(value, partial):
            for inner in (value.func, *value.args, *value.keywords.values()):
                self._member(inner, depth)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._cached(value, depth)
        elif isinstance(value, weakref.ref):
            self._visit(value(), depth - 1)
        elif isinstance(value, threading.local):
            self._attributes(value.__dict__, depth)
        elif isinstance(value, (logging.Logger, logging.LoggerAdapter)):
            self._logger(value)
        elif isinstance(value, type):
            return
        elif (own := operator_function(value)) is not None:
            self._function(own, depth - 1)
        elif _is_lasting(value):
            self._hold(f"its code reaches a {kind.__name__} of {kind.__module__}")
        elif isinstance(value, Iterator) and not hasattr(value, "fileno"):
            self._hold(f"its code reaches an iterator ({kind.__name__})")
        elif kind.__module__ == "torch.quasirandom" or kind.__name__ == "SeedSequence":
            self._hold(f"its code reaches a {kind.__name__}")
        elif not is_closed(kind) or is_opened(value):
            self._object(value, depth)

    def _logger(self, value: Any) -> None:
        while isinstance(value, logging.LoggerAdapter):
            value = value.logger
        if isinstance(value, logging.Logger):
            self._loggers.append(value)

    def _cached(self, function: Any, depth: int) -> None:
        """Visits a cached function, and the generators among its results."""
        self._visit(function.__wrapped__, depth - 1)
        found = gc.get_referents(function)
        for _ in range(3):  # its cache, the cache's links, their results
            self.generators.extend(item for item in found if generator_state(item) is not None)
            links = [item for item in found if type(item) is dict or type(item).__name__ == "_lru_list_elem"]
            found = gc.get_referents(*links)[:_LARGE] if links else []

    def _method(self, value: Any, depth: int) -> None:
        owner = value.__self__
        if isinstance(value, types.MethodType):
            self._function(value.__func__, depth - 1, owner)
        else:
            self._look_at_function(value)
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
                self._member(item, depth)

    def _member(self, value: Any, depth: int) -> None:
        """Visits a value that has no name. A container gets a place in a holder of its own, so that its content is
        restored."""
        if has_content(value):
            self._place({"member": value}, "member", depth)
        else:
            self._visit(value, depth - 1)

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
        """Visits an object's attributes. Scalars need no place of their own: they are restored with their holder."""
        if len(attributes) <= _FEW_ITEMS:
            self.holders.append(attributes)
            for name, value in list(attributes.items()):
                if type(value) not in _SCALARS or type(value) is tuple:
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
    if is_container(value):
        return len(value) <= _LARGE
    if isinstance(value, torch.Tensor):
        return kind is torch.Tensor and value.is_leaf and not value.requires_grad and not value.is_inference()
    return kind in _SCALARS or isinstance(value, (tuple, enum.Enum)) or is_array(value) or _is_memory(value)


def is_container(value: Any) -> bool:
    """Whether `value` is a list, dictionary, set or deque, of Python's class or one of the user's own."""
    kind = type(value)
    return kind in _CONTAINERS or isinstance(value, (dict, list, deque, set)) and not is_closed(kind)


def is_array(value: Any) -> bool:
    """Whether `value` is a small NumPy array of numbers, in which a forward may keep statistics."""
    kind = type(value)
    is_numpys = kind.__name__ == "ndarray" and kind.__module__ == "numpy"
    return is_numpys and value.nbytes <= _ARRAY_BYTES and not value.dtype.hasobject


def has_content(value: Any) -> bool:
    """Whether `value` is a container, or memory, whose content an `Undo` restores in place."""
    return is_container(value) and len(value) <= _LARGE or _is_memory(value)


def _is_memory(value: Any) -> bool:
    """Whether `value` is a small `bytearray`, `array` or value of `ctypes`."""
    kind = type(value)
    if kind is bytearray:
        return len(value) <= _ARRAY_BYTES
    if kind.__module__ == "array":
        return bool(len(value) * value.itemsize <= _ARRAY_BYTES)
    ctypes = sys.modules.get("ctypes")
    if ctypes is None or not isinstance(value, (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)):
        return False
    return not isinstance(value, ctypes.py_object) and ctypes.sizeof(value) <= _ARRAY_BYTES


def _is_lasting(value: Any) -> bool:
    """Whether `value` is a file, a connection or the like: effects of a forward on it can't be undone."""
    module = str(type(value).__module__)
    if isinstance(value, io.IOBase):
        return value not in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return module.partition(".")[0] in _LASTING or module.startswith("torch.utils.tensorboard")


def is_opened(value: Any) -> bool:
    """Whether the attributes of a library's object are searched."""
    kind = type(value)
    names = (f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__)
    return isinstance(value, _OPENED) or any(name in _OPENED_NAMES for name in names)


def operators_named(names: set[str]) -> list[Any]:
    """The Python functions of the user's own operators that code with these names may call, as
    `torch.ops.library.operator(x)`."""
    custom: Any = sys.modules.get("torch._library.custom_ops")
    known = getattr(custom, "OPDEFS", {}) if "ops" in names else {}
    return [made._init_fn for name, made in list(known.items()) if names.issuperset(name.split("::"))]


def operator_function(value: Any) -> Any:
    """The Python function of an operator of the user's own; None for any other value."""
    packet = getattr(value, "_overloadpacket", value) if isinstance(value, torch._ops.OpOverload) else value
    if isinstance(packet, torch._ops.OpOverloadPacket):
        functions = operators_named({"ops", *packet._qualified_op_name.split("::")})
        return functions[0] if functions else None
    return getattr(value, "_init_fn", None) if type(value).__name__ == "CustomOpDef" else None


def names_of(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes in code, that of functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_of(constant)


def _strings_of(code: types.CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _strings_of(constant)


def _has(owner: Any, name: str) -> bool:
    """Whether an object has an attribute. No property runs."""
    tables = [getattr(owner, table, ()) for table in ("__dict__", "_buffers", "_parameters", "_modules")]
    return hasattr(type(owner), name) or any(name in table for table in tables)


@functools.lru_cache(maxsize=1024)
def stored_by(code: types.CodeType) -> tuple[str, ...]:
    """The names of the attributes that code writes."""
    return tuple({str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"})


def is_closed(value: Any) -> bool:
    """Whether a class, function or module belongs to a library that is not searched."""
    name = getattr(value, "__module__", None) if not isinstance(value, types.ModuleType) else value.__name__
    return not isinstance(name, str) or name.partition(".")[0] in _CLOSED


def generator_state(value: Any) -> tuple[Any, Any] | None:
    """The functions that read and restore a random generator's state; None for any other value."""
    kind = type(value)
    if kind in _SCALARS or kind in _CONTAINERS:
        return None
    bases = kind.__mro__  # isinstance() takes a microsecond for torch's class
    if torch.Generator in bases:
        return value.get_state, value.set_state
    if random.Random in bases:
        return (value.getstate, value.setstate) if random.SystemRandom not in bases else None
    if kind.__module__ not in _NUMPYS:
        return None
    if kind.__name__ == "RandomState":
        return value.get_state, value.set_state
    if kind.__name__ == "Generator":
        bits = value.bit_generator
        return partial(getattr, bits, "state"), partial(setattr, bits, "state")
    return None


def note_generator(undo: Any, generator: Any) -> None:
    """Makes `undo` restore the random generator's present state."""
    read, put_back = generator_state(generator) or (None, None)
    if read is not None:
        for call, value in _calls(generator, put_back, read()):
            undo.later(call, value)


def set_generator(generator: Any, state: Any) -> None:
    """Sets the random generator's state."""
    _, put_back = generator_state(generator) or (None, None)
    for call, value in _calls(generator, put_back, state):
        call(value)


def _calls(generator: Any, put_back: Any, state: Any) -> list[tuple[Any, Any]]:
    return python_setters(state, generator) if isinstance(generator, random.Random) else [(put_back, state)]
