"""``python -m memscale.benchmarks``: compares peaks and step times with those of other methods.

Each round trains each case unmodified, with Hugging Face checkpointing, and wrapped (see `suite`). Ratios
compare runs of the same round, so that drift of the machine affects both alike. Prints a table; with
``--output`` also writes JSON.

``--suite canonical`` measures the five cases of the published tables with every method,
``--suite grid`` their 25 shapes, ``--quick`` small versions of the five.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

from ..device import KINDS
from . import overheads
from .cases import BENCHMARK_MODELS, CASES, GRID, QUICK
from .suite import DEFAULT_CASES, SUITES, Suite
from .table import METHODS, markdown, measure

TABLES = {"canonical": BENCHMARK_MODELS, "grid": GRID}
QUICK_STEPS = 2


def main(argv: list[str] | None = None) -> int:
    """Runs the suite. The exit status is 1 if a run exceeded its budget or changed a bit."""
    parser = argparse.ArgumentParser(prog="python -m memscale.benchmarks", description=__doc__)
    parser.add_argument("--suite", choices=["default", *TABLES], default="default", help="what to measure")
    parser.add_argument("--quick", action="store_true", help="small versions of the canonical cases, two steps")
    parser.add_argument("--case", action="append", choices=sorted(CASES), help="only this case (repeatable)")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="only this method (tables only)")
    parser.add_argument("--budget-gb", action="append", type=float, help="also under this budget (tables only)")
    parser.add_argument("--device", choices=list(KINDS), default="cpu", help="where to train (tables only)")
    parser.add_argument("--closed-python", help="interpreter that has memscale 1.2.0 (tables only)")
    parser.add_argument("--markdown", type=Path, help="also write the tables as Markdown (tables only)")
    parser.add_argument("--rounds", type=int, default=1, help="interleaved rounds (default 1)")
    parser.add_argument("--steps", type=int, default=4, help="steps of each run (default 4)")
    parser.add_argument("--output", type=Path, help="also write the figures as JSON")
    parser.add_argument("--no-overheads", action="store_true", help="leave out import, planning and idle costs")
    arguments = parser.parse_args(argv)
    if arguments.quick or arguments.suite != "default":
        return _tables(parser, arguments)
    unknown = [name for name in arguments.case or () if name not in SUITES]
    if unknown:
        parser.error(f"--case {unknown[0]} belongs to a table: give --suite or --quick")
    report: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cases": {}}
    if not arguments.no_overheads:
        report["overheads"] = _overheads()
    good = True
    for name in arguments.case or DEFAULT_CASES:
        report["cases"][name] = rows = [
            row for _ in range(arguments.rounds) for row in Suite(name, arguments.steps).run()
        ]
        good = good and all(row["held"] for row in rows)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if good else 1


def _tables(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    table = QUICK if arguments.quick else TABLES[arguments.suite]
    foreign = [name for name in arguments.case or () if name not in table]
    if foreign:
        parser.error(f"--case {foreign[0]} is not in this suite; there are {', '.join(table)}")
    if not KINDS[arguments.device].is_there():
        parser.error(f"--device {arguments.device}: PyTorch sees no GPU here")
    document = measure(
        arguments.case or list(table),
        arguments.method or list(METHODS),
        steps=min(arguments.steps, QUICK_STEPS) if arguments.quick else arguments.steps,
        device=arguments.device,
        closed_python=arguments.closed_python,
        budgets_gb=arguments.budget_gb,
    )
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(document, indent=2) + "\n")
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(document))
    rows = [row for case in document["cases"] for row in case["runs"]]
    over = [row for row in rows if row.get("budget_bytes", row.get("peak_bytes", 0)) < row.get("peak_bytes", 0)]
    return 1 if over or any(row["status"] == "error" for row in rows) else 0


def _overheads() -> dict[str, Any]:
    figures: dict[str, Any] = {"import_ms": overheads.import_ms()}
    print(f"import memscale: {figures['import_ms']:.0f} ms", flush=True)
    figures["planning_ms"] = overheads.in_child("planning")
    for name, span in figures["planning_ms"].items():
        print(f"planning, {name}: {span:.0f} ms", flush=True)
    figures["nothing_to_do_ratio"] = overheads.in_child("nothing-to-do")["ratio"]
    print(f"a step wrapped with nothing to do: {figures['nothing_to_do_ratio']:.4f} of unwrapped", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
