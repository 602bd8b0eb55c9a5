"""Frontiers: step time over budget, measured, beside Hugging Face checkpointing and uniform offload.

    python bench/frontier.py [--case NAME]... [--budgets N] [--rounds N] [--output FILE] [--pictures FOLDER]

For each case budgets are laid evenly from what the unoptimized step needs down to 1% above
the smallest that the planner names. Each run is a process of its own; the first round runs
everything once, later ones the budgets at which plan and uniform offload came within 5% of each
other, whichever was ahead: one after the other, so that a drifting machine moves both, and
compared within a round. A run's step time is the median of its
last three steps: a plan is made anew after the first ones, when the loop and the optimizer
have been seen, and its first step faults in what it holds more. Uniform offload is this
library's executor under a plan that moves every layer's saved tensors to disk, with a cache
that fills its budget: the yardstick that the planner's choice has to beat.

Verdicts: a run's peak stays within its budget, gradients are those of the unmodified run,
and at every budget at which checkpointing or uniform offload fits, the planned step is at
most 2% slower. Exit status 1 where one is missed.
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

NOISE = 1.02
# Processes differ by a few megabytes before their first step.
SMALLEST_MARGIN = 1.01
SETTLED_STEPS = 3
CLOSE = 0.05
CASES = ("gpt2", "bert", "llama")
METHODS = {"plain": "unmodified", "hf": "HF checkpointing", "uniform": "uniform offload", "memscale": "memscale"}
COLOURS = {"plain": "#333333", "hf": "#b30000", "uniform": "#cc8800", "memscale": "#0b62a4"}


# -- in a child -------------------------------------------------------------------------------


def limits(case_name: str) -> dict[str, int]:
    """What the unoptimized step needs, and the smallest budgets, in bytes."""
    import memscale
    from memscale import _core
    from memscale.benchmarks.cases import CASES as KNOWN
    from memscale.benchmarks.cases import batches

    case = KNOWN[case_name]
    ids = batches(case, 1)[0]
    model = case.make().train()
    inputs = {"input_ids": ids, "labels": ids}
    need = memscale.plan(model, inputs, memscale.Config(enable_logging=False)).unoptimized_peak_bytes
    try:
        memscale.plan(model, inputs, memscale.Config(memory_budget_gb=0.001))
    except memscale.BudgetInfeasibleError as refusal:
        smallest = refusal.smallest_budget_bytes
    session = memscale.core.session.Session(model, memscale.Config(), applies=False)
    graph = json.loads(session._profiler.trace(model, (), inputs))
    graph["loop"] |= {"observed": True, "outputs_held": False, "gradients_live_in_forward": False}
    text = _core.plan_uniform(json.dumps(graph), session.hardware_json, memscale.Config().to_json(), "offload_disk")
    return {"need": need, "smallest": smallest, "uniform": json.loads(text)["smallest_budget_bytes"]}


def train(arguments: list[str], uniform: bool) -> int:
    """The child of the benchmark suite; under a uniform plan if asked."""
    from memscale import _core
    from memscale.benchmarks import child
    from memscale.core.session import Session

    if uniform:

        def make_plan(session: Session, graph: str) -> str:
            return _core.plan_uniform(graph, session.hardware_json, session.config_json, "offload_disk")

        Session._make_plan = make_plan  # type: ignore[method-assign]
    sys.argv = ["child", *arguments]
    return child.main()


# -- the parent ---------------------------------------------------------------------------------


def _child(*arguments: str) -> tuple[list[dict[str, Any]], str]:
    command = [sys.executable, __file__, *arguments]
    environment = dict(os.environ, HF_HUB_OFFLINE="1")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return (lines, "") if done.returncode == 0 else ([], done.stderr.strip().rsplit("\n", 1)[-1][:200])


def _run(case: str, method: str, budget: int | None, steps: int) -> dict[str, Any]:
    variant = "memscale" if method == "uniform" else method
    arguments = ["--case", case, "--variant", variant, "--steps", str(steps)]
    if budget is not None:
        arguments += ["--budget-gb", repr(budget / 1e9)]
    lines, error = _child("--child", method, "--", *arguments)
    row: dict[str, Any] = {"case": case, "method": method, "budget_bytes": budget}
    if error:
        return row | {"error": error}
    done = lines[-1]
    steps_seen = [line for line in lines if line["event"] == "step"]
    bits = [(line["loss"], line["digest"]) for line in steps_seen]
    seconds = statistics.median(line["seconds"] for line in steps_seen[-SETTLED_STEPS:])
    return row | {"peak_bytes": done["peak_bytes"], "step_seconds": seconds, "bits": bits,
                  "predicted_peak_bytes": done.get("predicted_peak_bytes")}


def _show(row: dict[str, Any]) -> None:
    budget = "-" if row["budget_bytes"] is None else f"{row['budget_bytes'] / 1e9:.2f}"
    told = row.get("error") or f"peak {row['peak_bytes'] / 1e9:6.2f} GB   step {row['step_seconds']:7.2f} s"
    print(f"  {METHODS[row['method']]:<18} budget {budget:>6}   {told}", flush=True)


def measure(case: str, budgets: int, rounds: int, steps: int) -> list[dict[str, Any]]:
    """All runs of a case, round by round."""
    found, error = _child("--limits", case)
    if error:
        raise RuntimeError(f"{case}: {error}")
    need, uniform = found[0]["need"], found[0]["uniform"]
    smallest = int(found[0]["smallest"] * SMALLEST_MARGIN)
    print(f"\n{case}: {need / 1e9:.2f} GB needed, {smallest / 1e9:.2f} GB the least", flush=True)
    wanted = [need - (need - smallest) * i // max(budgets - 1, 1) for i in range(budgets)]
    runs: list[tuple[str, int | None]] = [("plain", None), ("hf", None)]
    for budget in wanted:
        runs.append(("memscale", budget))
        if budget >= uniform:
            runs.append(("uniform", budget))
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        close = _close_budgets(rows)
        for method, budget in runs:
            if number == 0 or budget in close:
                rows.append(_run(case, method, budget, steps) | {"round": number})
                _show(rows[-1])
    return rows


def _close_budgets(rows: list[dict[str, Any]]) -> set[int]:
    """Budgets at which the first round says too little about who is faster."""
    return {
        budget
        for budget in {row["budget_bytes"] for row in rows} - {None}
        if any(abs(ratio - 1) < CLOSE for ratio in _ratios(rows, budget)[:1])
    }


def _ratios(rows: list[dict[str, Any]], budget: int | None) -> list[float]:
    """Planned over uniform step time at a budget, one for each round that has both."""
    seconds = {
        (row["method"], row["round"]): row["step_seconds"]
        for row in rows
        if row["budget_bytes"] == budget and "step_seconds" in row
    }
    pairs = [(seconds.get(("memscale", i)), seconds.get(("uniform", i))) for i in range(len(rows))]
    return [ours / theirs for ours, theirs in pairs if ours and theirs]


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each method and budget: the median step and the highest peak of the rounds."""
    points: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for row in rows:
        points.setdefault((row["method"], row["budget_bytes"]), []).append(row)
    plain = next(row["bits"] for row in rows if row["method"] == "plain" and "error" not in row)
    summary = []
    for (method, budget), runs in points.items():
        good = [run for run in runs if "error" not in run]
        point: dict[str, Any] = {"case": runs[0]["case"], "method": method, "budget_bytes": budget}
        if len(good) < len(runs):
            point["error"] = next(run["error"] for run in runs if "error" in run)
        if good:
            point["peak_bytes"] = max(run["peak_bytes"] for run in good)
            point["step_seconds"] = statistics.median(run["step_seconds"] for run in good)
            point["same_bits"] = all(run["bits"] == plain for run in good)
            point["rounds"] = len(good)
        if method == "memscale" and (ratios := _ratios(rows, budget)):
            point["over_uniform"] = statistics.median(ratios)
        summary.append(point)
    return summary


def verdicts(points: list[dict[str, Any]]) -> list[str]:
    """What was missed, in words; empty where everything holds."""
    missed = []
    ours = [point for point in points if point["method"] == "memscale"]
    for point in ours:
        name = f"{point['case']} at {point['budget_bytes'] / 1e9:.2f} GB"
        if "error" in point or not point["same_bits"]:
            missed.append(f"{name}: {point.get('error', 'other gradients')}")
            continue
        if point["peak_bytes"] > point["budget_bytes"]:
            missed.append(f"{name}: peak {point['peak_bytes'] / 1e9:.2f} GB")
        for peer in points:
            fits = peer["method"] in ("hf", "uniform") and peer.get("peak_bytes", 1 << 62) <= point["budget_bytes"]
            same = peer["method"] == "hf" or peer["budget_bytes"] == point["budget_bytes"]
            ratio = point["step_seconds"] / peer["step_seconds"] if fits and same else 0.0
            if ratio and peer["method"] == "uniform":
                ratio = point["over_uniform"]
            if ratio > NOISE:
                missed.append(f"{name}: {ratio:.3f} times the step of {METHODS[peer['method']]}")
    lowest = min((point["peak_bytes"] for point in ours if "peak_bytes" in point), default=None)
    for peer in points:
        if peer["method"] in ("hf", "uniform") and lowest is not None and peer.get("peak_bytes", 1 << 62) < lowest:
            missed.append(f"{peer['case']}: {METHODS[peer['method']]} goes lower")
    return missed


# -- pictures -----------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 440, 80, 690, 50, 380


def picture(case: str, points: list[dict[str, Any]]) -> str:
    """An SVG: measured step time over measured peak, one colour for each method."""
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
        f'<text x="{LEFT}" y="24" font-size="15">Measured step time over measured peak: {case}</text>',
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
    parser.add_argument("--budgets", type=int, default=8, help="budgets of each case (default 8)")
    parser.add_argument("--rounds", type=int, default=1, help="interleaved rounds (default 1)")
    parser.add_argument("--steps", type=int, default=5, help="steps of each run (default 5)")
    parser.add_argument("--output", type=Path, help="write runs and points as JSON")
    parser.add_argument("--pictures", type=Path, help="folder for one frontier-CASE.svg for each case")
    parser.add_argument("--limits", help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=list(METHODS), help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.limits is not None:
        print(json.dumps(limits(arguments.limits)))
        return 0
    if arguments.child is not None:
        return train(arguments.rest, arguments.child == "uniform")
    document: dict[str, Any] = {"load_average": os.getloadavg(), "cases": {}, "missed": []}
    missed: list[str] = document["missed"]
    if arguments.pictures is not None:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    for case in arguments.case or CASES:
        rows = measure(case, arguments.budgets, arguments.rounds, arguments.steps)
        points = summarise(rows)
        missed += verdicts(points)
        document["cases"][case] = {"runs": rows, "points": points}
        if arguments.output is not None:  # after every case: the next one takes a quarter of an hour
            arguments.output.write_text(json.dumps(document, indent=2) + "\n")
        if arguments.pictures is not None:
            (arguments.pictures / f"frontier-{case}.svg").write_text(picture(case, points))
    print("\n" + ("\n".join(missed) if missed else "every verdict holds"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
