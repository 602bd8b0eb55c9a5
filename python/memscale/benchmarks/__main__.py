"""``python -m memscale.benchmarks``: compares peaks and step times with those of other methods.

Each round trains each case unmodified, with Hugging Face checkpointing, and wrapped. Ratios compare
runs of the same round, so that drift of the machine affects both alike. Prints a table; with
``--output`` also writes JSON.

``--suite canonical`` measures the five cases of the published tables with every method,
``--suite grid`` their 25 shapes, ``--quick`` small versions of the five.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from pathlib import Path
from typing import Any

from ..device import KINDS
from . import overheads
from .cases import BENCHMARK_MODELS, CASES, GRID, QUICK
from .runner import Run, run
from .table import METHODS, markdown, measure

# A budget is in GB, a share of the unmodified peak ("0.75x"), or a multiple of the smallest budget
# that the planner names ("1.05m"). "+": memscale's optimizer trains, and the plan may offload its
# state and release gradients. "*": as "+", and the plan may also change the order of sums.
SUITES = {
    "gpt2": ("6.0", "5.0", "4.0", "3.8", "2.9", "2.1+", "1.7+", "1.45*"),
    "bert": ("0.75x", "1.05m"),
    "llama": ("0.75x", "1.05m"),
    "gpt2-tiny": ("0.75x",),
}
DEFAULT_CASES = ("gpt2", "bert", "llama")

TABLES = {"canonical": BENCHMARK_MODELS, "grid": GRID}
QUICK_STEPS = 2

# Largest allowed relative difference of losses: if only the update rounds differently, and if sums do too.
UPDATED, ROUNDED = 1e-5, 1e-3


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
        rows, held = _case(name, arguments.rounds, arguments.steps)
        report["cases"][name] = rows
        good = good and held
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


def _case(name: str, rounds: int, steps: int) -> tuple[list[dict[str, Any]], bool]:
    case = CASES[name]
    print(f"\n{name} {case.batch} x {case.sequence}", flush=True)
    print(
        f"  {'run':<20}{'budget':>8}{'peak GB':>9}{'predicted':>11}{'off by':>8}{'step s':>8}{'ratio':>7}  gradients",
        flush=True,
    )
    rows: list[dict[str, Any]] = []
    for _ in range(rounds):
        plain = run(name, "plain", steps=steps)
        rows.append(_row(name, plain, plain, None))
        checkpointing = run(name, "hf", steps=steps)
        rows.append(_row(name, checkpointing, plain, None))
        if name == "gpt2":
            rows += _full_offload(name, plain, checkpointing, steps)
        for text in SUITES[name]:
            variant = "memscale-all" if text.endswith(("+", "*")) else "memscale"
            config = {"enable_tiling": True} if text.endswith("*") else None
            budget = _budget_gb(text.rstrip("+*"), name, plain)
            outcome = run(name, variant, budget_gb=budget, steps=steps, config=config)
            rows.append(_row(name, outcome, plain, budget, ROUNDED if config else UPDATED))
    return rows, all(row["held"] for row in rows)


def _full_offload(name: str, plain: Run, checkpointing: Run, steps: int) -> list[dict[str, Any]]:
    """Offloads all saved tensors of layers to disk, with checkpointing's peak as the budget. Runs once with all
    cores, and once with torch on one core fewer, compared with an unmodified run that also has one core fewer."""
    if not checkpointing.finished:
        return []
    budget = checkpointing.result["peak_bytes"] / 1e9
    rows = [_row(name, run(name, "uniform", budget_gb=budget, steps=steps), plain, budget)]
    _say_ratio("full offload", rows[-1], 1.05)
    fewer = len(os.sched_getaffinity(0)) - 1
    if fewer > 0:
        slower = run(name, "plain", steps=steps, threads=fewer)
        rows.append(_row(name, slower, slower, None))
        rows.append(_row(name, run(name, "uniform", budget_gb=budget, steps=steps, threads=fewer), slower, budget))
        _say_ratio(f"full offload, torch on {fewer} of {fewer + 1} cores", rows[-1], 1.03)
    return rows


def _say_ratio(what: str, row: dict[str, Any], most: float) -> None:
    if "ratio" in row:
        verdict = "held" if row["ratio"] <= most else "MISSED"
        print(f"    {what}: {row['ratio']:.3f} of the unmodified step (target {most}: {verdict})", flush=True)


def _budget_gb(text: str, name: str, plain: Run) -> float:
    if text.endswith("x"):
        return float(text[:-1]) * float(plain.result["peak_bytes"]) / 1e9
    if text.endswith("m"):
        return float(text[:-1]) * _smallest_budget_gb(name)
    return float(text)


def _smallest_budget_gb(name: str) -> float:
    """The smallest budget that the planner names when it refuses an impossible one."""
    outcome = run(name, "memscale", budget_gb=0.001, steps=1)
    marker = "smallest budget that would fit is "
    if marker not in outcome.stderr:
        raise RuntimeError(f"{name}: no smallest budget was named:\n{outcome.stderr}")
    return float(outcome.stderr.rsplit(marker, 1)[1].split()[0])


def _row(name: str, outcome: Run, plain: Run, budget_gb: float | None, apart: float = UPDATED) -> dict[str, Any]:
    row: dict[str, Any] = {"case": name, "run": outcome.variant, "budget_gb": budget_gb, "held": False}
    if not outcome.finished:
        print(f"  {outcome.variant:<20} did not finish (status {outcome.exit_code})\n{outcome.stderr}", flush=True)
        return row
    result = outcome.result
    peak = result["peak_bytes"]
    predicted = result.get("predicted_peak_bytes")
    row |= {
        "peak_bytes": peak,
        "predicted_peak_bytes": predicted,
        "step_seconds": result["step_seconds"],
        "ratio": result["step_seconds"] / plain.result["step_seconds"],
        "same_bits": _is_same(outcome, plain, apart),
    }
    row["held"] = row["same_bits"] and (budget_gb is None or peak <= budget_gb * 1e9)
    off = f"{(predicted - peak) / peak * 100:+.1f}%" if predicted else "-"
    print(
        f"  {outcome.variant:<20}{f'{budget_gb:.2f}' if budget_gb else '-':>8}{peak / 1e9:>9.2f}"
        f"{f'{predicted / 1e9:.2f}' if predicted else '-':>11}{off:>8}{row['step_seconds']:>8.2f}"
        f"{row['ratio']:>7.2f}  {_words(outcome) if row['same_bits'] else 'DIFFERENT'}"
        f"{'' if row['held'] else '  NOT HELD'}",
        flush=True,
    )
    return row


def _words(outcome: Run) -> str:
    return "losses agree" if outcome.variant == "memscale-all" else "equal"


def _is_same(outcome: Run, plain: Run, apart: float) -> bool:
    """Compares losses and gradients bit by bit. With memscale's optimizer it compares only losses, which may differ by
    `apart`: the update rounds differently, and gradients are freed before they could be hashed."""
    if outcome.variant == "memscale-all":
        pairs = zip(outcome.steps, plain.steps, strict=True)
        return all(math.isclose(ours["loss"], theirs["loss"], rel_tol=apart) for ours, theirs in pairs)
    return [(s["loss"], s["digest"]) for s in outcome.steps] == [(s["loss"], s["digest"]) for s in plain.steps]


if __name__ == "__main__":
    sys.exit(main())
