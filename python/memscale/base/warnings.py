"""Warnings that several ways of wrapping share.

Each function gets the model or trainer that the caller passed. The guide explains each warning.
"""

from __future__ import annotations

import logging

__all__ = ["warn_nothing_to_undo", "warn_replaced"]

_log = logging.getLogger("memscale")


def warn_replaced(target: object) -> None:
    """`wrap()` found an earlier wrap and replaces it."""
    _log.warning("wrap: this %s was already wrapped; the first wrap is replaced", type(target).__name__)


def warn_nothing_to_undo(target: object) -> None:
    """`detach()` found no wrap."""
    _log.warning("detach: this %s was not wrapped; nothing to undo", type(target).__name__)
