"""Makes the published table of cases by methods, as JSON and Markdown, with machine and versions.

Each run has its own process. ``python -m memscale.benchmarks --suite canonical`` (or ``grid``) and
``--quick`` use this module.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from .cases import CASES, Case
from .runner import Run, run

__all__ = ["METHODS", "Method", "markdown", "measure"]

_CLOSED_VERSION = "1.2.0"


@dataclass(frozen=True)
class Method:
    """One way to train a case.

    Attributes:
        name: the method's name in the table and on the command line.
        variant: the child's variant.
        budget: the budget as a share of the unmodified peak, or None.
        mode: memscale's mode; None for the default.
        budget_gb: the budget in GB, instead of a share.
    """

    name: str
    variant: str
    budget: float | None = None
    mode: str | None = None
    budget_gb: float | None = None


METHODS = {
    method.name: method
    for method in (
        Method("unmodified", "plain"),
        Method("hf-checkpointing", "hf"),
        Method("hf-checkpointing-offload", "hf_offload"),
        Method("memscale-75%", "memscale", 0.75),
        Method("memscale-50%", "memscale", 0.5),
        Method("memscale-conservative", "memscale", None, "conservative"),
        Method("memscale-balanced", "memscale", None, "balanced"),
        Method("memscale-aggressive", "memscale", None, "aggressive"),
        Method("memscale-all", "memscale-all", None, "aggressive"),
        Method("closed-aggressive", "closed", None, "aggressive"),
    )
}


def measure(
    cases: list[str],
    methods: list[str],
    *,
    steps: int,
    device: str,
    closed_python: str | None,
    budgets_gb: list[float] | None = None,
) -> dict[str, Any]:
    """Runs every case with every method, and wrapped under each of `budgets_gb`. Prints each row when it is
    ready.

    Returns:
        The document for JSON: ``version``, ``machine``, ``versions``,
        ``device``, ``load_average`` and ``cases``.
    """
    document: dict[str, Any] = {
        "version": 1,
        "machine": _machine(),
        "versions": _versions(),
        "device": device,
        "load_average": os.getloadavg(),
        "steps": steps,
        "cases": [],
    }
    for name in cases:
        case = CASES[name]
        print(f"\n{name}: {case.batch} x {case.sequence}", flush=True)
        entry: dict[str, Any] = {"name": name, "batch": case.batch, "sequence": case.sequence, "runs": []}
        document["cases"].append(entry)
        plain: Run | None = None
        for method in [*map(METHODS.__getitem__, methods), *map(_under, budgets_gb or ())]:
            row, outcome = _run(case, method, plain, steps, device, closed_python)
            if method.variant == "plain" and outcome is not None and outcome.finished:
                plain = outcome
            entry["runs"].append(row)
            print("  " + _line(row), flush=True)
    return document


def _under(budget_gb: float) -> Method:
    return Method(f"memscale-{budget_gb:g}GB", "memscale", budget_gb=budget_gb)


# -- one run ---------------------------------------------------------------------------------


def _run(
    case: Case, method: Method, plain: Run | None, steps: int, device: str, closed_python: str | None
) -> tuple[dict[str, Any], Run | None]:
    row: dict[str, Any] = {"method": method.name, "status": "ok"}
    refusal = _refusal(case, method, plain, device, closed_python)
    if refusal is not None:
        return row | {"status": refusal}, None
    budget_gb = method.budget_gb
    if method.budget is not None and plain is not None:
        budget_gb = method.budget * plain.result["peak_bytes"] / 1e9
    if budget_gb is not None:
        row["budget_bytes"] = round(budget_gb * 1e9)
    outcome = run(
        case.name,
        method.variant,
        budget_gb=budget_gb,
        force=method.variant.startswith("memscale") and budget_gb is None,
        config={} if method.mode is None else {"mode": method.mode},
        steps=steps,
        device=device,
        interpreter=closed_python if method.variant == "closed" else None,
    )
    if not outcome.finished:
        return row | {"status": _status(outcome), "detail": outcome.stderr.strip().rsplit("\n", 1)[-1][:300]}, outcome
    row["peak_bytes"] = outcome.result["peak_bytes"]
    row["step_seconds"] = outcome.result["step_seconds"]
    row["predicted_peak_bytes"] = outcome.result.get("predicted_peak_bytes")
    if plain is not None or method.variant == "plain":
        base = plain or outcome
        row["ratio"] = outcome.result["step_seconds"] / base.result["step_seconds"]
        row["peak_share"] = outcome.result["peak_bytes"] / base.result["peak_bytes"]
        # memscale's own AdamW rounds differently from torch's in the last place.
        row["same_bits"] = None if method.variant == "memscale-all" else _bits(outcome) == _bits(base)
    return row, outcome


def _bits(outcome: Run) -> list[tuple[Any, Any]]:
    return [(step["loss"], step["digest"]) for step in outcome.steps]


def _refusal(case: Case, method: Method, plain: Run | None, device: str, closed_python: str | None) -> str | None:
    """The reason for skipping a run, as its status."""
    if method.variant == "hf_offload" and device == "cpu":
        return "not applicable"  # the host is its offload tier
    if method.variant == "closed":
        return None if closed_python and _has_closed(closed_python) else "not installed"
    if method.budget is not None and plain is None:
        return "no unmodified peak"
    return "predicted not to fit" if device == "cpu" and _is_hopeless(case, method) else None


def _is_hopeless(case: Case, method: Method) -> bool:
    """Whether the machine surely has too little memory. Such a run could make the kernel kill others."""
    if case.config is None or method.variant == "memscale-all":
        return False
    from memscale import Config, OOMPredictor, OptimizationMode

    if method.variant == "plain":
        return OOMPredictor(case.config()).predict(batch=case.batch, sequence=case.sequence).risk == "certain"
    # Checkpointing takes at least as much as recomputation alone.
    mode = "conservative" if method.variant == "hf" else method.mode or "balanced"
    budget = method.budget_gb
    config = Config(mode=OptimizationMode(mode), memory_budget_gb=budget, force_optimize=budget is None)
    found = OOMPredictor(case.config(), config).predict(batch=case.batch, sequence=case.sequence)
    return found.planned_risk == "certain"


def _has_closed(interpreter: str) -> bool:
    code = "from importlib.metadata import version; print(version('memscale'))"
    try:
        done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == _CLOSED_VERSION


def _status(outcome: Run) -> str:
    if outcome.was_killed:
        return "killed"
    if "BudgetInfeasibleError" in outcome.stderr:
        return "infeasible"
    return "out of memory" if "OutOfMemory" in outcome.stderr or "allocate memory" in outcome.stderr else "error"


# -- the machine -------------------------------------------------------------------------------


def _machine() -> Any:
    from memscale import _core

    found = json.loads(_core.hardware_probe())
    found["disk"].pop("dir", None)  # the path does not matter
    return found


def _versions() -> dict[str, str | None]:
    names = ("memscale", "torch", "transformers", "accelerate")
    found: dict[str, str | None] = {"python": platform.python_version(), "kernel": platform.release()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    from memscale import __version__

    return found | {"memscale": __version__}


# -- as text -------------------------------------------------------------------------------------


def _line(row: dict[str, Any]) -> str:
    if row["status"] != "ok":
        return f"{row['method']:<26} {row['status']}"
    cells = _cells(row)
    return f"{row['method']:<26} peak {cells[1]:>7} GB  step {cells[3]:>8} s  ratio {cells[4]:>5}  gradients {cells[5]}"


def _cells(row: dict[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [row["method"], row["status"], "", "", "", ""]
    predicted, ratio = row["predicted_peak_bytes"], row.get("ratio")
    bits = {True: "equal", False: "different", None: "-"}[row.get("same_bits")]
    return [
        row["method"],
        f"{row['peak_bytes'] / 1e9:.2f}",
        "-" if predicted is None else f"{predicted / 1e9:.2f}",
        f"{row['step_seconds']:.3f}",
        "-" if ratio is None else f"{ratio:.2f}",
        bits,
    ]


def _memory(ram: dict[str, Any]) -> str:
    total, limit = ram["total_bytes"], ram.get("limit_bytes")
    limited = f" (limited to {limit / 1e9:.1f} GB)" if limit is not None and limit < total else ""
    return f"{total / 1e9:.1f} GB{limited}"


def markdown(document: dict[str, Any]) -> str:
    """The document as a page with the machine and one table for each case."""
    machine, versions = document["machine"], document["versions"]
    names = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU"
    told = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    lines = [
        "# Benchmark",
        "",
        f"{machine['cpu']['name']}, {machine['cpu']['usable_cpus']} CPUs, "
        f"{_memory(machine['ram'])}, {names}; {told}. Device {document['device']}, "
        f"{document['steps']} steps, load average at the start {document['load_average'][0]:.1f}.",
    ]
    for case in document["cases"]:
        lines += [
            "",
            f"## {case['name']}, {case['batch']} x {case['sequence']}",
            "",
            "| method | peak GB | predicted GB | step s | ratio | gradients |",
            "|---|---|---|---|---|---|",
            *("| " + " | ".join(_cells(row)) + " |" for row in case["runs"]),
        ]
    return "\n".join(lines) + "\n"
