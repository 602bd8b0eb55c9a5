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
from functools import partial
from typing import Any

import torch

from .. import _core
from ..device import ACCELERATORS, AUTOCAST_KINDS, RandomState
from .modes import DISPATCH, FUNCTION, is_ours, modes_on, set_modes, stack_functions

__all__ = ["Environment", "Modes", "Switches", "enable_hooks", "without_modes"]

_Writer = tuple[Any, tuple[str, ...], bool]
"""A function that sets a value, the names of its keyword arguments, which get the last parts of the value, and
whether it takes a value at all."""

_Row = tuple[Any, tuple[_Writer, ...]]
"""A function that reads a setting (or one for each part of its value), and the functions that set it. All of them are
builtins, because C calls them while no interrupt may come."""

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
    # Each is a pair of names in torch._C, getter and setter; a single name stands for _get_<name> and _set_<name>.
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
    """The table of settings. Each setting selects kernels, changes their results, or can be read by a layer. Random
    states are not among them. Settings that this build of torch lacks are left out. Precisions come last, the wider
    ones first, because setting a wider one may set narrower ones."""
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
    """The rows of precisions. Old settings come first, because each sets some of the new ones."""
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
        """Makes `undo` restore every setting that has changed by then, except precisions and the number of threads.

        Writing a precision has a side effect: torch then no longer derives it from the wider one. So has
        writing the number of threads: torch starts a thread.
        """
        own = slice(1, len(Switches._rows) - Switches._precisions)
        undo.later(_core.put_settings, Switches._rows[own], self._values[own])

    def put(self, undo: Any) -> None:
        """Sets the recorded settings. `undo` restores the present ones, even if the layer sets others meanwhile."""
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
        self._function = _of_others(FUNCTION) if c._len_torch_function_stack() else []
        self._dispatch = _of_others(DISPATCH) if c._len_torch_dispatch_stack() else []

    def put(self, undo: Any) -> list[Any]:
        """Puts exactly these modes on; `undo` restores the present ones, even if the layer begins others meanwhile.
        Returns the modes that the caller has left since then: they see the operators again."""
        c, left = torch._C, []
        for kind, modes, count in (
            (DISPATCH, self._dispatch, c._len_torch_dispatch_stack()),
            (FUNCTION, self._function, c._len_torch_function_stack()),
        ):
            if modes or count:
                now = modes_on(kind)
                left += [mode for mode in modes if not any(mode is one for one in now)]
                _put_modes(undo, kind, now, modes)
            else:
                undo.later(_core.set_modes, *stack_functions(kind), [])
        return left

    def all(self) -> list[Any]:
        """The modes themselves."""
        return [*self._function, *self._dispatch]


def without_modes(undo: Any) -> None:
    """Takes off every mode except default devices; `undo` restores exactly the present ones."""
    from torch.utils._device import DeviceContext

    modes = modes_on(FUNCTION)
    _put_modes(undo, DISPATCH, modes_on(DISPATCH), [])
    _put_modes(undo, FUNCTION, modes, [mode for mode in modes if type(mode) is DeviceContext])


def _of_others(kind: str) -> list[Any]:
    return [mode for mode in modes_on(kind) if not is_ours(mode)]


def _put_modes(undo: Any, kind: str, now: list[Any], wanted: list[Any]) -> None:
    undo.later(_core.set_modes, *stack_functions(kind), now)
    set_modes(kind, wanted)


def enable_hooks(undo: Any) -> None:
    """Allows saved-tensor hooks; `undo` forbids them again if they were forbidden."""
    c: Any = torch._C._autograd
    if not c._saved_tensors_hooks_is_enabled():
        undo.later(c._saved_tensors_hooks_disable, c._saved_tensors_hooks_get_disabled_error_message())
        c._saved_tensors_hooks_enable()


def leave_inference_mode(undo: Any) -> None:
    """Leaves inference mode, in which operators record no graph; `undo` enters it again."""
    if torch.is_inference_mode_enabled():
        context = torch._C._InferenceMode(False)
        context.__enter__()
        undo.later(context.__exit__, None, None, None)


# ---- the whole environment --------------------------------------------------------------------


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
