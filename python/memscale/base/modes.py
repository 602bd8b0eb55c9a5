"""Puts one of torch's modes below all others, and removes one from anywhere on its stack.

A mode that spans a call of the user's code can't be a `with` block. Hooks begin and end it, and
other code may begin a mode in between and end it later. memscale's own modes call these functions,
each on its own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from .. import _core

__all__ = ["begin_below", "leave"]


def begin_below(mode: Any) -> None:
    """Begins a dispatch mode as the outermost. Other code that ends its own mode later removes the innermost
    mode, which must not be this one."""
    c = torch._C
    above = _get_current_dispatch_mode_stack()
    mode.__enter__()
    pop = partial(c._pop_torch_dispatch_stack, None)  # None stands for any key
    _core.set_modes(c._len_torch_dispatch_stack, pop, c._push_on_torch_dispatch_stack, [mode, *above])


def leave(mode: Any, stack: Callable[[], list[Any]], pop: Callable[[], Any], push: Callable[[Any], Any]) -> None:
    """Ends `mode`; modes that began later stay on. Does nothing if `mode` is not on.

    Args:
        mode: a function mode or a dispatch mode, begun by its `__enter__()`.
        stack: returns this thread's modes of its kind, the innermost last.
        pop: removes the innermost of them.
        push: adds one as the innermost.
    """
    if not any(one is mode for one in stack()):
        return
    above = []
    while stack()[-1] is not mode:
        above.append(pop())
    mode.__exit__(None, None, None)
    for one in reversed(above):
        push(one)
