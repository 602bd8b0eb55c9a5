"""The report of an executor: one HTML page that needs nothing else."""

from __future__ import annotations

import html
import json
from typing import Any

__all__ = ["write_report"]

_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:70em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right}"
    "td:first-child,th:first-child,td.text{text-align:left}pre{background:#f5f5f5;padding:1em;overflow:auto}"
)


def write_report(path: str, model: str, plan: Any, counters: dict[str, int], tier: str | None) -> None:
    """Writes the page to `path`."""
    parts = [f"<h1>memscale: {_text(model)}</h1>"]
    if plan is None:
        parts.append("<p>There is no plan yet.</p>")
    else:
        parts += [f"<pre>{_text(plan)}</pre>", _entries(json.loads(plan.to_json()))]
    parts.append(f"<p>Lower tier: {_text(tier or 'none')}</p>")
    parts.append(_table("Counters", ("counter", "value"), [(name, f"{value:,}") for name, value in counters.items()]))
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>memscale: {_text(model)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def _entries(plan: dict[str, Any]) -> str:
    columns = ("layer", "call", "technique", "rule", "kept if kept", "freed", "cost in ms")
    rows = [
        (
            entry["name"] or "(root)",
            entry["call"],
            entry["technique"],
            entry["rule"],
            f"{entry['kept_bytes']:,}",
            f"{entry['saved_bytes']:,}",
            f"{entry['cost_ns'] / 1e6:.3f}",
        )
        for entry in plan["entries"]
    ]
    return _table("Plan", columns, rows)


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h2>{_text(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _text(value: Any) -> str:
    return html.escape(str(value))
