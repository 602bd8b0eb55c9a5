"""Prints a child's progress, line by line, and whether it did what was claimed. The demo, `xl` and `larger` use it."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from .runner import Run, run

__all__ = ["trained_within", "train"]


def train(title: str, case: str, variant: str, steps: int, **options: Any) -> Run:
    """Runs `steps` steps in a child process and prints a line for each.

    Args:
        title: the printed name of the run.
        options: as for `runner.Child`.
    """
    start = time.perf_counter()
    print(f"\n{title}:", flush=True)

    def report(step: dict[str, Any]) -> None:
        print(
            f"  step {step['step'] + 1}/{steps}  loss {step['loss']:.6f}  {step['seconds']:.1f} s  "
            f"peak {step['peak_bytes'] / 1e9:.2f} GB",
            flush=True,
        )

    outcome = run(case, variant, steps=steps, on_step=report, **options)
    if not outcome.finished and not outcome.was_killed:
        print(outcome.stderr, file=sys.stderr)
    elif variant.startswith("memscale") and outcome.stderr:
        print("  " + outcome.stderr.strip().replace("\n", "\n  "))
    print(f"  ({time.perf_counter() - start:.0f} s with start-up)", flush=True)
    return outcome


def trained_within(outcome: Run, budget_gb: float) -> bool:
    """Whether losses were finite and fell, and the peak stayed within the budget; prints both."""
    if not outcome.finished:
        return False
    losses = [step["loss"] for step in outcome.steps]
    fell = all(math.isfinite(loss) for loss in losses) and losses[-1] < losses[0]
    fits = outcome.result["peak_bytes"] <= budget_gb * 1e9
    print(f"\nlosses finite and falling: {'yes' if fell else 'NO'}")
    print(f"peak within the budget: {'yes' if fits else 'NO'}", flush=True)
    return fell and fits
