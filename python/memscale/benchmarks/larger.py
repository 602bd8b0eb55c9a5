"""Trains models whose parameters alone are larger than the budget: they stream from disk.

Run with ``python -m memscale.benchmarks.larger``, or ``make bench-larger``. `llama-3b` has 3.2 billion parameters in
fp32 (12.9 GB) and AdamW state twice as large, 1 x 512 tokens, under 6 GB; it takes 39 GB of disk and about ten minutes
on two cores. The yardstick is the time that disk and processor need at least, from their measured rates.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .. import _core
from .cases import CASES
from .progress import train, trained_within

BUDGETS_GB = {"llama-3b": 6.0, "gpt2-xl": 4.0}
LEARNING_RATE = 1e-5
_STATE_BYTES_PER_BYTE = 2
"""AdamW's two moments have the parameters' size each."""
_FLOPS_PER_WEIGHT = 8
"""For each token: two in forward, four in backward, two more if every layer is recomputed."""


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if every printed claim held."""
    parser = argparse.ArgumentParser(prog="python -m memscale.benchmarks.larger", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(BUDGETS_GB)}; default: all")
    parser.add_argument("--steps", type=int, default=3, help="training steps (default 3)")
    parser.add_argument("--budget-gb", type=float, help="another budget, for every case")
    arguments = parser.parse_args(argv)
    held = True
    for name in arguments.cases or BUDGETS_GB:
        if name not in CASES:
            parser.error(f"{name!r} is no case; there are {', '.join(BUDGETS_GB)}")
        budget_gb = arguments.budget_gb or BUDGETS_GB.get(name, 6.0)
        title = f"{name}: memscale with streamed parameters, {budget_gb} GB"
        outcome = train(
            title, name, "memscale-streamed", arguments.steps, budget_gb=budget_gb, learning_rate=LEARNING_RATE
        )
        held = trained_within(outcome, budget_gb) and held
        if outcome.finished:
            _print_yardstick(name, outcome.result)
    return 0 if held else 1


def _print_yardstick(name: str, result: dict[str, Any]) -> None:
    machine = json.loads(_core.hardware_probe())
    streamed = result["streamed"]
    parameters, window = streamed["total_bytes"], streamed["window_bytes"]
    absent, state = max(parameters - window, 0), _STATE_BYTES_PER_BYTE * parameters
    disk_s = (2 * absent + state) / machine["disk"]["read_bytes_per_s"]
    disk_s += (parameters + state) / machine["disk"]["write_bytes_per_s"]
    tokens = CASES[name].batch * CASES[name].sequence
    compute_s = _FLOPS_PER_WEIGHT * (parameters / 4) * tokens / machine["cpu"]["matmul_flops_per_s"]
    least_s = max(disk_s, compute_s)
    print(
        f"  the disk needs at least {disk_s:.0f} s a step, the processor {compute_s:.0f} s; a step took "
        f"{result['step_seconds']:.0f} s, {result['step_seconds'] / least_s:.2f} of the larger",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
