"""Measures step time at several budgets, and compares it with Hugging Face checkpointing and uniform offload.

    python bench/frontier.py [--case NAME]... [--budgets N] [--steps N] [--output FILE] [--pictures FOLDER]

For each case, budgets are spaced evenly from the need of the unoptimized step down to 1% above
the smallest budget that the planner names. Each run is a process of its own. At each budget the
planned run and uniform offload take turns, step by step. The median ratio of their last steps
compares them, so a machine that gets slower or faster changes both alike. The first steps don't
count: memscale makes a new plan after it has seen the loop and the optimizer, and the first step
of that plan faults in additional memory. Uniform offload is this library's executor under a plan
that moves every layer's saved tensors to disk, with a cache that fills the budget. The planner's
choice must beat it.

The goals: each run's peak stays within its budget, its gradients are those of the unmodified
run, and at every budget at which checkpointing or uniform offload fits, the planned step is at
most 2% slower than theirs. Exits with status 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from memscale.benchmarks.runner import Child, Run, in_turn

NOISE = 1.02
# The memory of two processes differs by a few megabytes before their first step.
SMALLEST_MARGIN = 1.01
SETTLED_STEPS = 5
CASES = ("gpt2", "bert", "llama")
METHODS = {"plain": "unmodified", "hf": "HF checkpointing", "uniform": "uniform offload", "memscale": "memscale"}
COLOURS = {"plain": "#333333", "hf": "#b30000", "uniform": "#cc8800", "memscale": "#0b62a4"}


# -- in a child -------------------------------------------------------------------------------


def limits(case_name: str) -> dict[str, int]:
    """In bytes: the need of the unoptimized step, the smallest budget of any plan, and that of uniform offload."""
    import memscale
    from memscale import _core
    from memscale.benchmarks.cases import CASES as KNOWN
    from memscale.benchmarks.cases import batches

    case = KNOWN[case_name]
    [inputs] = batches(case, 1)
    model = case.make().train()
    need = memscale.plan(model, inputs, memscale.Config(enable_logging=False)).unoptimized_peak_bytes
    try:
        memscale.plan(model, inputs, memscale.Config(memory_budget_gb=0.001))
    except memscale.BudgetInfeasibleError as refusal:
        smallest = refusal.smallest_budget_bytes
    session = memscale.session.session.Session(model, memscale.Config(), applies=False)
    graph = json.loads(session._profiler.trace(model, (), inputs))
    graph["loop"] |= {"observed": True, "outputs_held": False, "gradients_live_in_forward": False}
    text = _core.plan_uniform(json.dumps(graph), session.hardware_json, memscale.Config().to_json(), "offload_disk")
    return {"need": need, "smallest": smallest, "uniform": json.loads(text)["smallest_budget_bytes"]}


# -- the parent ---------------------------------------------------------------------------------


def _limits_of(case: str) -> dict[str, int]:
    done = subprocess.run([sys.executable, __file__, "--limits", case], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{case}: {_reason(done.stderr)}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _reason(stderr: str) -> str:
    return stderr.strip().rsplit("\n", 1)[-1][:200]


def _row(case: str, method: str, budget: int | None, outcome: Run) -> dict[str, Any]:
    row: dict[str, Any] = {"case": case, "method": method, "budget_bytes": budget}
    if not outcome.finished:
        return row | {"error": _reason(outcome.stderr)}
    return row | {
        "peak_bytes": outcome.result["peak_bytes"],
        "predicted_peak_bytes": outcome.result.get("predicted_peak_bytes"),
        "step_seconds": statistics.median(step["seconds"] for step in outcome.steps[-SETTLED_STEPS:]),
        "seconds": [step["seconds"] for step in outcome.steps],
        "bits": [(step["loss"], step["digest"]) for step in outcome.steps],
    }


def _show(row: dict[str, Any]) -> None:
    budget = "-" if row["budget_bytes"] is None else f"{row['budget_bytes'] / 1e9:.2f}"
    told = row.get("error") or f"peak {row['peak_bytes'] / 1e9:6.2f} GB   step {row['step_seconds']:7.2f} s"
    ratio = f"   {row['over_uniform']:.3f} times uniform offload's step" if "over_uniform" in row else ""
    print(f"  {METHODS[row['method']]:<18} budget {budget:>6}   {told}{ratio}", flush=True)


def _in_turn(case: str, methods: list[str], budget: int | None, steps: int) -> list[dict[str, Any]]:
    """Runs several methods at one budget; they take turns, one step each."""
    budget_gb = None if budget is None else budget / 1e9
    children = [Child(case, method, budget_gb=budget_gb, steps=steps, takes_turns=True) for method in methods]
    rows = [_row(case, method, budget, run) for method, run in zip(methods, in_turn(children), strict=True)]
    if len(rows) == 2 and all("seconds" in row for row in rows):
        pairs = list(zip(*(row["seconds"][-SETTLED_STEPS:] for row in rows), strict=True))
        rows[0]["over_uniform"] = statistics.median(ours / theirs for ours, theirs in pairs)
    for row in rows:
        _show(row)
    return rows


def measure(case: str, budgets: int, steps: int) -> list[dict[str, Any]]:
    """Makes all runs of a case."""
    found = _limits_of(case)
    need, uniform = found["need"], found["uniform"]
    smallest = int(found["smallest"] * SMALLEST_MARGIN)
    print(f"\n{case}: need {need / 1e9:.2f} GB, smallest budget {smallest / 1e9:.2f} GB", flush=True)
    rows = _in_turn(case, ["plain"], None, steps) + _in_turn(case, ["hf"], None, steps)
    for i in range(budgets):
        budget = need - (need - smallest) * i // max(budgets - 1, 1)
        rows += _in_turn(case, ["memscale", "uniform"] if budget >= uniform else ["memscale"], budget, steps)
    plain = next(row["bits"] for row in rows if row["method"] == "plain" and "error" not in row)
    for row in rows:
        row["same_bits"] = row.get("bits") == plain
    return rows


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each missed goal; empty if all were met."""
    missed = []
    ours = [row for row in rows if row["method"] == "memscale"]
    for row in ours:
        name = f"{row['case']} at {row['budget_bytes'] / 1e9:.2f} GB"
        if not row["same_bits"]:
            missed.append(f"{name}: {row.get('error', 'gradients differ')}")
            continue
        if row["peak_bytes"] > row["budget_bytes"]:
            missed.append(f"{name}: over its budget, peak {row['peak_bytes'] / 1e9:.2f} GB")
        for peer in rows:
            fits = peer["method"] in ("hf", "uniform") and peer.get("peak_bytes", 1 << 62) <= row["budget_bytes"]
            same = peer["method"] == "hf" or peer["budget_bytes"] == row["budget_bytes"]
            ratio = row["step_seconds"] / peer["step_seconds"] if fits and same else 0.0
            if ratio and peer["method"] == "uniform":
                ratio = row["over_uniform"]
            if ratio > NOISE:
                missed.append(f"{name}: {ratio:.3f} times the step of {METHODS[peer['method']]}")
    lowest = min((row["peak_bytes"] for row in ours if "peak_bytes" in row), default=None)
    for peer in rows:
        if peer["method"] in ("hf", "uniform") and lowest is not None and peer.get("peak_bytes", 1 << 62) < lowest:
            missed.append(f"{peer['case']}: {METHODS[peer['method']]} goes lower")
    return missed


# -- pictures -----------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 440, 80, 690, 50, 380


def picture(case: str, points: list[dict[str, Any]]) -> str:
    """An SVG that plots measured step time against measured peak, with one colour for each method."""
    good = [point for point in points if "peak_bytes" in point]
    most_gb = 1.05 * max(point["peak_bytes"] for point in good) / 1e9
    most_s = 1.05 * max(point["step_seconds"] for point in good)

    def place(point: dict[str, Any]) -> tuple[float, float]:
        x = LEFT + (RIGHT - LEFT) * point["peak_bytes"] / 1e9 / most_gb
        return round(x, 1), round(BOTTOM - (BOTTOM - TOP) * point["step_seconds"] / most_s, 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15">Measured step time against measured peak: {case}</text>',
    ]
    for i in range(6):
        x, y = LEFT + (RIGHT - LEFT) * i / 5, BOTTOM - (BOTTOM - TOP) * i / 5
        out.append(f'<path d="M{LEFT} {y:g}H{RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{x:g}" y="{BOTTOM + 18}" text-anchor="middle">{most_gb * i / 5:.1f} GB</text>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:g}" text-anchor="end">{most_s * i / 5:.1f} s</text>')
    out.append(f'<path fill="none" stroke="#333" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>')
    for number, (method, name) in enumerate(METHODS.items()):
        mine = sorted((point for point in good if point["method"] == method), key=lambda p: p["peak_bytes"])
        colour = COLOURS[method]
        if len(mine) > 1:
            line = " ".join(f"{x:g},{y:g}" for x, y in map(place, mine))
            out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>')
        for point in mine:
            x, y = place(point)
            label = f"{name}: {point['peak_bytes'] / 1e9:.2f} GB, {point['step_seconds']:.2f} s"
            out.append(f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{colour}"><title>{label}</title></circle>')
        out.append(f'<circle cx="{LEFT + 20 + 150 * number}" cy="{BOTTOM + 40}" r="4" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + 30 + 150 * number}" y="{BOTTOM + 44}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", help=f"a case of the suite (default {', '.join(CASES)})")
    parser.add_argument("--budgets", type=int, default=8, help="number of budgets for each case (default 8)")
    parser.add_argument(
        "--steps", type=int, default=9, help=f"steps of each run; the last {SETTLED_STEPS} count (default 9)"
    )
    parser.add_argument("--output", type=Path, help="write runs and points as JSON")
    parser.add_argument("--pictures", type=Path, help="folder for frontier-CASE.svg of each case")
    parser.add_argument("--limits", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.limits is not None:
        print(json.dumps(limits(arguments.limits)))
        return 0
    document: dict[str, Any] = {"load_average": os.getloadavg(), "cases": {}, "missed": []}
    missed: list[str] = document["missed"]
    if arguments.pictures is not None:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    for case in arguments.case or CASES:
        rows = measure(case, arguments.budgets, arguments.steps)
        missed += verdicts(rows)
        document["cases"][case] = rows
        if arguments.output is not None:  # write after every case: each takes a quarter of an hour
            arguments.output.write_text(json.dumps(document, indent=2) + "\n")
        if arguments.pictures is not None:
            (arguments.pictures / f"frontier-{case}.svg").write_text(picture(case, rows))
    print("\n" + ("\n".join(missed) if missed else "all goals were met"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
