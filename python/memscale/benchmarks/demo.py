"""The demo: GPT-2 small trains under a byte budget that the unmodified run exceeds.

Child processes run the same steps on the same text: unmodified, with Hugging Face
gradient checkpointing, and wrapped with budgets of 4.0 and 3.0 GB. If the machine allows it (root
and a memory cgroup), the unmodified and the wrapped script then run
under a kernel limit of 4.5 GB: the first is killed, the second finishes.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .progress import train
from .runner import Run, memory_group

CASE = "gpt2"
BUDGETS_GB = (4.0, 3.0)
KERNEL_LIMIT_GB = 4.5
UNMODIFIED = "unmodified"


def main(argv: list[str] | None = None) -> int:
    """Runs the demo. The exit status is 0 if every printed claim held."""
    parser = argparse.ArgumentParser(prog="python -m memscale.benchmarks.demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="training steps of each run (default 4)")
    parser.add_argument("--no-limit", action="store_true", help="leave out the runs under a kernel limit")
    arguments = parser.parse_args(argv)
    steps = arguments.steps
    print(
        "GPT-2 small (124 M parameters), 4 x 512 tokens, fp32, AdamW, on the source of Python's standard library",
        flush=True,
    )
    runs = {
        UNMODIFIED: train(UNMODIFIED, CASE, "plain", steps),
        "HF checkpointing": train("HF checkpointing", CASE, "hf", steps),
    }
    for budget_gb in BUDGETS_GB:
        runs[_title(budget_gb)] = _train_wrapped(budget_gb, steps)
    _print_table(runs)
    held = _check(runs)
    if not arguments.no_limit:
        held = _under_a_kernel_limit() and held
    return 0 if held else 1


def _title(budget_gb: float) -> str:
    return f"memscale, {budget_gb} GB"


def _train_wrapped(budget_gb: float, steps: int, **options: Any) -> Run:
    return train(_title(budget_gb), CASE, "memscale", steps, budget_gb=budget_gb, **options)


def _print_table(runs: dict[str, Run]) -> None:
    base = runs[UNMODIFIED].result.get("step_seconds")
    print(f"\n{'run':<20}{'peak GB':>9}{'predicted':>11}{'step s':>9}{'ratio':>7}{'last loss':>12}  gradients")
    for title, outcome in runs.items():
        if not outcome.finished:
            print(f"{title:<20}  did not finish (status {outcome.exit_code})")
            continue
        result, last = outcome.result, outcome.steps[-1]
        predicted = result.get("predicted_peak_bytes")
        print(
            f"{title:<20}{result['peak_bytes'] / 1e9:>9.2f}"
            f"{_gb(predicted):>11}{result['step_seconds']:>9.2f}"
            f"{_ratio(result, base):>7}{last['loss']:>12.6f}  {last['digest']}"
        )


def _gb(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e9:.2f}"


def _ratio(result: dict[str, Any], base_seconds: float | None) -> str:
    return "-" if not base_seconds else f"{result['step_seconds'] / base_seconds:.2f}"


def _check(runs: dict[str, Run]) -> bool:
    if not all(outcome.finished for outcome in runs.values()):
        return False
    wrapped = {budget_gb: runs[_title(budget_gb)] for budget_gb in BUDGETS_GB}
    same = all(_seen(outcome) == _seen(runs[UNMODIFIED]) for outcome in wrapped.values())
    fits = all(outcome.result["peak_bytes"] <= budget_gb * 1e9 for budget_gb, outcome in wrapped.items())
    print(f"\nlosses and gradients equal to the unmodified run's, to the bit: {'yes' if same else 'NO'}")
    print(f"peak within the budget: {'yes' if fits else 'NO'}", flush=True)
    return same and fits


def _seen(outcome: Run) -> list[tuple[float, str]]:
    return [(step["loss"], step["digest"]) for step in outcome.steps]


def _under_a_kernel_limit() -> bool:
    with memory_group(int(KERNEL_LIMIT_GB * 1e9)) as group:
        if group is None:
            print("\n(no memory cgroup can be made here: the runs under a kernel limit are left out)")
            return True
        print(f"\nunder a kernel limit of {KERNEL_LIMIT_GB} GB:", flush=True)
        plain = train(UNMODIFIED, CASE, "plain", 2, group=group)
        print(f"  -> {'killed by the kernel' if plain.was_killed else f'status {plain.exit_code}'}")
        wrapped = _train_wrapped(BUDGETS_GB[0], 2, group=group)
        print(f"  -> {'finished' if wrapped.finished else f'status {wrapped.exit_code}'}", flush=True)
        return plain.was_killed and wrapped.finished


if __name__ == "__main__":
    sys.exit(main())
