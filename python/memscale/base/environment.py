"""The state that a forward depends on besides its arguments, parameters and buffers: random number
generators, autocast, precision, and every other setting of the process that operators read.

One table, `_rows()`, lists the settings. The state is read before each layer that will be recomputed,
whole or in part. A replay sets that state, and afterwards the present state is restored.
`memscale.execution.replay`, `memscale.execution.tape` and `memscale.techniques.tiles` use this module.
"""

from __future__ import annotations

import contextvars
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from .. import _core
from ..device import ACCELERATORS, AUTOCAST_KINDS, RandomState

__all__ = ["Environment", "Modes", "Switches", "enable_hooks", "without_modes"]

_Writer = tuple[Any, tuple[str, ...], bool]
"""A function, the names under which it takes the last parts of the value, and whether it takes the value at all."""

_Row = tuple[Any, tuple[_Writer, ...]]
"""A function that reads a setting (or one for each part of its value), and what sets it. All of them are builtins,
because C calls them where no interrupt may come."""

_PRECISIONS = [
    ("generic", "all"),
    *(
        (backend, operator)
        for backend in (*(kind.name for kind in ACCELERATORS), "mkldnn")
        for operator in ("all", "matmul", "conv", "rnn")
    ),
]

_OLD_PRECISIONS = ("cudnn_allow_tf32", "float32_matmul_precision")

_FLAGS = [
    # each in torch._C: a name for _get_<name> and _set_<name>, or getter and setter
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    ("_get_fa3_sdp_enabled", "_set_sdp_use_fa3"),
    "sdp_priority_order",
    "math_sdp_allow_fp16_bf16_reduction",
    "mkldnn_enabled",
    "mkldnn_deterministic",
    "nnpack_enabled",
    "cpu_allow_fp16_reduced_precision_reduction",
    "cudnn_enabled",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "cublas_allow_fp16_accumulation",
    "cublas_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction",
    "qengine",
    "deterministic_fill_uninitialized_memory",
]

_GPU_FLAGS = [
    "miopen_immediate",
    "blas_preferred_backend",
    "linalg_preferred_backend",
    "rocm_fa_preferred_backend",
    "sm_carveout_experimental",
]


def _rows() -> list[_Row]:
    """The table of settings: each selects kernels, changes their results, or can be read by a layer. Random
    states are kept apart. Settings that this build of torch lacks are left out. Precisions come last, the wider
    ones first, because narrower ones may follow them."""
    c = torch._C
    printing = vars(torch._tensor_str.PRINT_OPTS)
    rows: list[_Row] = [
        _row(torch.get_num_threads, torch.set_num_threads),  # must be first; see Switches.note()
        _row(_core.float_control, _core.set_float_control),
        _row(torch.get_default_dtype, c._set_default_dtype),
        _row(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        *_attribute(torch.backends.mha, "_is_fastpath_enabled"),
        (
            (c._get_deterministic_algorithms, c._get_deterministic_algorithms_warn_only),
            ((c._set_deterministic_algorithms, ("warn_only",), True),),
        ),
        ((torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled), ((torch.set_anomaly_enabled, (), True),)),
        _filters(),
        *_attribute(torch.backends.opt_einsum, "enabled"),
        *_attribute(torch.backends.opt_einsum, "strategy"),
        _row(printing.copy, printing.update),
    ]
    for device in AUTOCAST_KINDS:
        rows += [
            _row(partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)),
            _row(partial(torch.get_autocast_dtype, device), partial(torch.set_autocast_dtype, device)),
        ]
    for flag in [*_FLAGS, *(_GPU_FLAGS if any(kind.is_there() for kind in ACCELERATORS) else ())]:
        getter, setter = flag if isinstance(flag, tuple) else (f"_get_{flag}", f"_set_{flag}")
        read, write = getattr(c, getter, None), getattr(c, setter, None)
        if read is not None and write is not None:
            rows.append(_row(read, write))
    return [*rows, *_precisions()]


def _precisions() -> list[_Row]:
    """The rows of precisions. Old settings come first, because each of them sets some of the new ones."""
    c, rows = torch._C, []
    for name in ("cudnn_allow_tf32", "float32_matmul_precision"):
        read, write = getattr(c, f"_get_{name}", None), getattr(c, f"_set_{name}", None)
        if read is not None and write is not None:
            rows.append(_row(read, write))
    read, write = (getattr(c, f"_{way}_fp32_precision_{way}ter", None) for way in ("get", "set"))
    if read is not None and write is not None:
        rows += [_row(partial(read, *where), partial(write, *where)) for where in _PRECISIONS]
    return rows


def _row(read: Any, write: Any) -> _Row:
    return read, ((write, (), True),)


def _attribute(holder: Any, name: str) -> list[_Row]:
    attributes = vars(holder)
    if name not in attributes:
        return []
    return [_row(partial(attributes.get, name), partial(attributes.__setitem__, name))]


def _filters() -> _Row:
    read, (write,) = _attribute(warnings, "filters")[0]
    mutated = getattr(warnings, "_filters_mutated", None)
    return read, (write, *(((mutated, (), False),) if mutated is not None else ()))


class Switches:
    """The values of all settings of the table at one moment."""

    __slots__ = ("_values",)

    _rows: list[_Row] = []
    _precisions = 0

    def __init__(self) -> None:
        if not Switches._rows:
            Switches._rows = _rows()
            Switches._precisions = len(_precisions())
        self._values = _core.read_settings(Switches._rows)

    def note(self, undo: Any) -> None:
        """Makes `undo` restore every setting that differs then, except precisions and the number of threads.

        torch's precisions stop following one another once they are written. And torch starts a thread
        when the number of threads is written.
        """
        own = slice(1, len(Switches._rows) - Switches._precisions)
        undo.later(_core.put_settings, Switches._rows[own], self._values[own])

    def put(self, undo: Any) -> None:
        """Sets that moment's settings. `undo` restores the present ones, whatever the layer has set meanwhile."""
        now = _core.read_settings(Switches._rows)
        undo.later(_core.put_settings, Switches._rows, now)
        if now != self._values:
            _core.put_settings(Switches._rows, self._values)


# ---- modes ----------------------------------------------------------------------------------


class Modes:
    """The modes of this thread at one moment. memscale's own modes are left out, because they change no result."""

    __slots__ = ("_dispatch", "_function")

    def __init__(self) -> None:
        c = torch._C
        self._function = (
            [mode for mode in _function_modes() if not _is_ours(mode)] if c._len_torch_function_stack() else []
        )
        self._dispatch = (
            [mode for mode in _dispatch_modes() if not _is_ours(mode)] if c._len_torch_dispatch_stack() else []
        )

    def put(self, undo: Any) -> list[Any]:
        """Puts exactly these modes on; `undo` restores the present ones, whatever the layer has begun meanwhile.
        Returns those that the caller has left since then; they see the operators again."""
        c, left = torch._C, []
        if self._dispatch or c._len_torch_dispatch_stack() != 0:
            now = _dispatch_modes()
            left += [mode for mode in self._dispatch if not any(mode is one for one in now)]
            _set_modes(undo, "dispatch", now, self._dispatch)
        else:
            undo.later(_core.set_modes, *_functions("dispatch"), [])
        if self._function or c._len_torch_function_stack() != 0:
            now = _function_modes()
            left += [mode for mode in self._function if not any(mode is one for one in now)]
            _set_modes(undo, "function", now, self._function)
        else:
            undo.later(_core.set_modes, *_functions("function"), [])
        return left

    def all(self) -> list[Any]:
        """The modes themselves."""
        return [*self._function, *self._dispatch]


def without_modes(undo: Any) -> None:
    """Takes off every mode except default devices; `undo` restores exactly the present ones."""
    from torch.utils._device import DeviceContext

    modes = _function_modes()
    _set_modes(undo, "dispatch", _dispatch_modes(), [])
    _set_modes(undo, "function", modes, [mode for mode in modes if type(mode) is DeviceContext])


def _is_ours(mode: Any) -> bool:
    return type(mode).__module__.partition(".")[0] == "memscale"


def _function_modes() -> list[Any]:
    c = torch._C
    return [c._get_function_stack_at(at) for at in range(c._len_torch_function_stack())]


def _dispatch_modes() -> list[Any]:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return list(_get_current_dispatch_mode_stack())


def _set_modes(undo: Any, kind: str, now: list[Any], wanted: list[Any]) -> None:
    functions = _functions(kind)
    undo.later(_core.set_modes, *functions, now)
    _core.set_modes(*functions, wanted)


@cache
def _functions(kind: str) -> tuple[Any, Any, Any]:
    """torch's functions for one kind of modes: the number of those on, one that pops the innermost and one that
    pushes."""
    length, pop, push = (getattr(torch._C, name.format(kind)) for name in _STACK)
    return length, (partial(pop, None) if kind == "dispatch" else pop), push  # None stands for any key


_STACK = ("_len_torch_{}_stack", "_pop_torch_{}_stack", "_push_on_torch_{}_stack")


def enable_hooks(undo: Any) -> None:
    """Allows saved-tensor hooks; `undo` forbids them again if they were forbidden."""
    c: Any = torch._C._autograd
    if not c._saved_tensors_hooks_is_enabled():
        undo.later(c._saved_tensors_hooks_disable, c._saved_tensors_hooks_get_disabled_error_message())
        c._saved_tensors_hooks_enable()


# ---- all of it --------------------------------------------------------------------------------


class Environment:
    """The settings, random states, context variables and modes of one moment."""

    __slots__ = ("_context", "_modes", "_random", "_switches")

    def __init__(self) -> None:
        self._random = RandomState()
        self._switches = Switches()
        self._context = _Context()
        self._modes = Modes()

    @property
    def modes(self) -> list[Any]:
        """The user's modes of that moment."""
        return self._modes.all()

    def put(self, undo: Any) -> list[Any]:
        """Sets the recorded environment; `undo` restores the present one. Returns the modes that the caller left."""
        RandomState().later(undo)
        self._switches.put(undo)
        left = self._modes.put(undo)
        if any(torch.is_autocast_enabled(device) for device in AUTOCAST_KINDS):
            # Casts of weights stay cached until the outermost autocast ends, as in torch.autocast.
            if torch.autocast_increment_nesting() == 1:
                undo.later(torch.clear_autocast_cache)
            undo.later(torch.autocast_decrement_nesting)
        enable_hooks(undo)
        undo.later(torch._C._set_grad_enabled, torch.is_grad_enabled())
        torch._C._set_grad_enabled(True)
        self._random.put_back()
        return left

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`function(*args, **kwargs)` with the recorded context variables, such as NumPy's error handling."""
        return self._context.made().run(function, *args, **kwargs)


class _Context:
    """Context variables with the values of one moment.

    A value may be a container to which layers append their outputs. Its present content is copied,
    without tensors of a graph, because the copy must not keep a graph alive. Each replay gets its own copy.
    """

    __slots__ = ("_containers", "_context")

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._containers = [
            (variable, _without_graphs(value))
            for variable, value in self._context.items()
            if type(value) in _CONTAINERS
        ]
        if self._containers:
            containers = {variable for variable, _ in self._containers}
            kept = [(variable, value) for variable, value in self._context.items() if variable not in containers]
            self._context = _context_of(kept)

    def made(self) -> contextvars.Context:
        """A new context for one call."""
        context = self._context.copy()
        for variable, value in self._containers:
            context.run(variable.set, _without_graphs(value))
        return context


def _context_of(values: list[tuple[contextvars.ContextVar[Any], Any]]) -> contextvars.Context:
    context = contextvars.Context()
    for variable, value in values:
        context.run(variable.set, value)
    return context


_CONTAINERS = (dict, OrderedDict, defaultdict, list, set, tuple)


def _without_graphs(value: Any, depth: int = 3) -> Any:
    """A copy of plain containers, nested up to `depth` deep, without tensors that belong to a graph."""
    kind = type(value)
    if kind not in _CONTAINERS or depth == 0:
        return value
    if kind in (dict, OrderedDict, defaultdict):
        copied = value.copy()
        for key, item in value.items():
            if _is_of_graph(item):
                del copied[key]
            else:
                copied[key] = _without_graphs(item, depth - 1)
        return copied
    return kind(_without_graphs(item, depth - 1) for item in value if not _is_of_graph(item))


def _is_of_graph(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None
