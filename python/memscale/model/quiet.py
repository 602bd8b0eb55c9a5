"""Keeps what a replay or a trace of a layer prints, logs and warns from being heard: its forward has said it.

`memscale.execution.module_state` uses this module around replays, `memscale.model.isolation` around traces.
"""

from __future__ import annotations

import builtins
import threading
import warnings
from functools import partial
from typing import Any

from .reach import Reach

__all__ = ["hush"]


class _OnThread(threading.local):
    is_hushed = False


_here = _OnThread()


def hush(undo: Any, reach: Reach) -> None:
    """Silences what the code prints, logs and warns on this thread, until `undo` runs. Other threads are heard."""
    if reach.is_silent:
        return
    undo.slot(_here.__dict__, "is_hushed")
    _here.is_hushed = True
    for scope in reach.printing:
        if "print" not in scope:
            undo.slot(scope, "print")
            scope["print"] = _print
    for logger in reach.loggers:
        if _filter not in logger.filters:
            undo.content(logger.filters)
            logger.filters.append(_filter)
    if reach.warns:
        _hush_warnings(undo)


def _hush_warnings(undo: Any) -> None:
    """A `catch_warnings()` of the layer's own hears as usual, because it puts other functions in these places."""
    scope = vars(warnings)
    for name in ("showwarning", "_showwarnmsg_impl"):
        usual = scope.get(name)
        is_default = name == "showwarning" and usual is scope.get("_showwarning_orig")
        if usual is not None and not is_default and getattr(usual, "func", None) is not _show:
            undo.slot(scope, name)
            scope[name] = partial(_show, usual)


def _print(*args: Any, **kwargs: Any) -> None:
    if not _here.is_hushed:
        builtins.print(*args, **kwargs)


def _filter(record: Any) -> bool:
    return not _here.is_hushed


def _show(usual: Any, *args: Any, **kwargs: Any) -> None:
    if not _here.is_hushed:
        usual(*args, **kwargs)
