"""Takes one of torch's modes off, wherever on its stack it is.

A mode that is on for as long as a call of the user's may run can't be a `with` block: hooks
begin and end it, and whoever began another mode meanwhile ends that one later. Called by the
modes of ours themselves, on the thread that they are on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["leave"]


def leave(mode: Any, stack: Callable[[], list[Any]], pop: Callable[[], Any], push: Callable[[Any], Any]) -> None:
    """Ends `mode`; modes that were begun later stay on. Nothing happens if it is not on.

    Args:
        mode: a function mode or a dispatch mode, begun by its `__enter__()`.
        stack: gives this thread's modes of its kind, the innermost last.
        pop: takes the innermost of them off.
        push: puts one on, as the innermost.
    """
    if not any(one is mode for one in stack()):
        return
    above = []
    while stack()[-1] is not mode:
        above.append(pop())
    mode.__exit__(None, None, None)
    for one in reversed(above):
        push(one)
