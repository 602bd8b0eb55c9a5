"""The state that a forward depends on besides its arguments, parameters and buffers: random number
generators, autocast, precision, and every other setting of the process that operators read.

The state is read before each layer that will be recomputed, whole or in part; settings.py has the table of settings.
A replay sets that state, and afterwards the present state is restored. `memscale.execution.replay`,
`memscale.execution.tape` and `memscale.techniques.tiles` use this module.
"""

from __future__ import annotations

import contextvars
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from .. import _core
from ..device import GENERATORS
from .modes import DISPATCH, FUNCTION, is_ours, modes_on, set_modes, stack_functions
from .settings import settings

__all__ = ["Environment", "Modes", "enable_hooks", "leave_inference_mode", "without_modes"]

# ---- modes ----------------------------------------------------------------------------------


class Modes:
    """The modes of this thread at one moment. memscale's own modes are left out, because they change no result."""

    __slots__ = ("_dispatch", "_function")

    def __init__(self, function: list[Any], dispatch: list[Any]) -> None:
        self._function = function
        self._dispatch = dispatch

    @classmethod
    def now(cls) -> Modes:
        """The modes of now; `_NONE` if there are none."""
        return cls(_of_others(FUNCTION), _of_others(DISPATCH)) if _core.are_modes_on() else _NONE

    def put(self, undo: Any) -> list[Any]:
        """Puts exactly these modes on; `undo` restores the present ones, even if the layer begins others meanwhile.
        Returns the modes that the caller has left since then: they see the operators again."""
        left = []
        for kind, modes in ((DISPATCH, self._dispatch), (FUNCTION, self._function)):
            now = modes_on(kind)
            left += [mode for mode in modes if not any(mode is one for one in now)]
            _put_modes(undo, kind, now, modes)
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


_NONE = Modes([], [])


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


@cache
def _inventory() -> _core.Inventory:
    end_modes = partial(_core.set_modes, *stack_functions(DISPATCH), [], *stack_functions(FUNCTION), [])
    return _core.inventory(settings(), GENERATORS, end_modes, contextvars.copy_context)


class Environment:
    """The settings, random states, context variables and modes of one moment."""

    __slots__ = ("_context", "_modes", "_moment")

    def __init__(self) -> None:
        self._moment, context = _inventory().take()  # the context may hold graphs, so it is not kept itself
        _, _, _, are_modes_on = self._moment
        self._context = _Context(context) if len(context) else context
        self._modes = Modes.now() if are_modes_on else _NONE

    @property
    def modes(self) -> list[Any]:
        """The user's modes of that moment."""
        return self._modes.all()

    def put(self, undo: Any) -> list[Any]:
        """Sets the recorded environment; `undo` restores the present one. Returns the modes that the caller left."""
        if _inventory().enter(undo, self._moment):
            return []
        modes = self._modes
        left = modes.put(undo) if modes is not _NONE or _core.are_modes_on() else []
        if torch._C._is_any_autocast_enabled():
            # Casts of weights stay cached until the outermost autocast ends, as in torch.autocast.
            if torch.autocast_increment_nesting() == 1:
                undo.later(torch.clear_autocast_cache)
            undo.later(torch.autocast_decrement_nesting)
        enable_hooks(undo)
        return left

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`function(*args, **kwargs)` with the recorded context variables, such as NumPy's error handling."""
        return self._context.copy().run(function, *args, **kwargs)


class _Context:
    """Context variables with the values of one moment.

    A value may be a container to which layers append their outputs. Its present content is copied,
    without tensors of a graph, because the copy must not keep a graph alive. Each replay gets its own copy.
    """

    __slots__ = ("_containers", "_context")

    def __init__(self, context: contextvars.Context) -> None:
        self._context = context
        self._containers = [
            (variable, _without_graphs(value))
            for variable, value in self._context.items()
            if type(value) in _CONTAINERS
        ]
        if self._containers:
            containers = {variable for variable, _ in self._containers}
            kept = [(variable, value) for variable, value in self._context.items() if variable not in containers]
            self._context = _context_of(kept)

    def copy(self) -> contextvars.Context:
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
