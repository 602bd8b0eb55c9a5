"""Silences prints, log records and warnings of a layer's code in replays and traces, because its forward gives them.

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
    """Silences the code's prints, logs and warnings on this thread, until `undo` runs."""
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
    """Silences warnings. A `catch_warnings()` in the layer's own code still works, because it replaces the functions
    that are silenced here."""
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
