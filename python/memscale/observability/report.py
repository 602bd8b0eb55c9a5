"""The report of an executor: one HTML page that loads no other file. C writes the page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .. import _core

if TYPE_CHECKING:
    from .watch import RunWatch

__all__ = ["write_report"]


def write_report(
    path: str | os.PathLike[str],
    model: str,
    plan: Any,
    documents: tuple[str | None, str | None],
    watch: RunWatch | None,
    counters: dict[str, int],
    tier: str | None,
) -> None:
    """Writes the page to `path`. `documents` are graph and hardware as JSON, if known."""
    path = os.fspath(path)  # refuses a number, which open() would take as a file descriptor
    history = None if watch is None else watch.history
    text = None if plan is None else plan.to_json()
    page = _core.report_html(model, tier, *documents, text, history, counters)
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)
