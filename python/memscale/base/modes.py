"""The stacks of torch's modes: reads and sets them whole, and begins and ends memscale's own modes.

A mode that spans a call of the user's code can't be a `with` block. Hooks begin and end it, and
other code may begin a mode in between and end it later. A stack is changed in one call into C, so that an
interrupt finds either the old stack or the new one. All functions act on the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from .. import _core
from .after_backward import in_backward

__all__ = [
    "DISPATCH",
    "FUNCTION",
    "begin_below",
    "is_ours",
    "leave",
    "modes_on",
    "retire",
    "set_modes",
    "stack_functions",
    "sweep",
    "without",
]

FUNCTION, DISPATCH = "function", "dispatch"
"""The kinds of modes: of `torch.overrides` and of `torch.utils._python_dispatch`."""


def modes_on(kind: str) -> list[Any]:
    """The modes of one kind, the innermost last."""
    if kind == DISPATCH:
        return list(_get_current_dispatch_mode_stack())
    c = torch._C
    return [c._get_function_stack_at(at) for at in range(c._len_torch_function_stack())]


def is_ours(mode: Any) -> bool:
    """Whether memscale has begun the mode. Its own modes change no result."""
    return type(mode).__module__.partition(".")[0] == "memscale"


@cache
def stack_functions(kind: str) -> tuple[Callable[[], int], Callable[[], Any], Callable[[Any], Any]]:
    """torch's functions for one kind of modes: the number of those on, one that pops the innermost and one that
    pushes."""
    names = (f"_len_torch_{kind}_stack", f"_pop_torch_{kind}_stack", f"_push_on_torch_{kind}_stack")
    length, pop, push = (getattr(torch._C, name) for name in names)
    return length, (partial(pop, None) if kind == DISPATCH else pop), push  # None stands for any key


def set_modes(kind: str, modes: list[Any]) -> None:
    """Makes these the modes of one kind, the innermost last."""
    _core.set_modes(*stack_functions(kind), modes)


def begin_below(mode: Any) -> None:
    """Begins a mode as the outermost of its kind. Other code that ends its own mode later removes the innermost
    mode, which must not be this one. Default devices stay outside: torch expects them there."""
    kind = DISPATCH if isinstance(mode, TorchDispatchMode) else FUNCTION
    before = modes_on(kind)
    devices = [one for one in before if isinstance(one, DeviceContext)]
    mode.__enter__()
    set_modes(kind, [*devices, mode, *(one for one in before if not isinstance(one, DeviceContext))])


def leave(mode: Any) -> None:
    """Ends a mode that its `__enter__()` began; modes that began later stay on. Does nothing if the mode is not on,
    so an interrupted call can be repeated."""
    kind = DISPATCH if isinstance(mode, TorchDispatchMode) else FUNCTION
    now = modes_on(kind)
    others = [one for one in now if one is not mode]
    if len(others) == len(now):
        return
    if now[-1] is not mode:
        set_modes(kind, [*others, mode])
    mode.__exit__(None, None, None)


def retire(mode: Any) -> None:
    """Ends a mode of memscale's for good, from any thread and from destructors. If it can't leave its stack now (that
    is another thread's, or one of the mode's operators runs), `sweep()` takes it off there."""
    mode.is_retired = True
    leave(mode)


def sweep() -> None:
    """Ends the retired modes that are still on. Inside a backward it does nothing: torch would put them back."""
    for kind in (FUNCTION, DISPATCH) if not in_backward() else ():
        for mode in modes_on(kind):
            if _is_retired(mode):
                leave(mode)


def _is_retired(mode: Any) -> bool:
    return is_ours(mode) and getattr(mode, "is_retired", False)


@contextmanager
def without(kind: str, is_unwanted: Callable[[Any], bool]) -> Iterator[None]:
    """Takes the unwanted modes of one kind off for a `with` block. Modes that the block leaves on stay on."""
    before = modes_on(kind)
    others = [mode for mode in before if not is_unwanted(mode)]
    if len(others) == len(before):
        yield
        return
    set_modes(kind, others)
    try:
        yield
    finally:
        begun = [mode for mode in modes_on(kind) if not any(mode is one for one in others)]
        set_modes(kind, [*(mode for mode in before if not _is_retired(mode)), *begun])
