"""Trains models whose parameters alone are larger than the budget: they stream from disk.

Run with ``python -m memscale.benchmarks.larger``, or ``make bench-larger``. `llama-3b` has 3.2 billion parameters in
fp32 (12.9 GB) and AdamW state twice as large, 1 x 512 tokens, under 6 GB; it takes 39 GB of disk and about ten minutes
on two cores. `llama-7b-lora` has a frozen base of 6.7 billion parameters in bf16 (13.5 GB of disk) and PEFT's adapters,
under 5 GB. `llama-lora-small` is the same code at a twentieth of the size, with 64 tokens. Both run only if named.

The yardstick is the time that disk and processor need at least for what the last plan does, from their measured rates.
Recomputed layers count as the plan predicts them; parameters that the page cache can hold are not read. Products of
bf16 numbers count at the rate of fp32, which a processor with AMX exceeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .. import _core
from .cases import CASES
from .progress import train, trained_within

BUDGETS_GB = {"llama-3b": 6.0, "gpt2-xl": 4.0, "llama-7b-lora": 5.0, "llama-lora-small": 0.8}
DEFAULT = ("llama-3b", "gpt2-xl")
LEARNING_RATE, ADAPTERS_LEARNING_RATE = 1e-5, 1e-3
_STATE_BYTES = 8
"""A trained weight has two moments in fp32."""
_FLOPS_PER_WEIGHT, _FLOPS_PER_TRAINED_WEIGHT = 4, 2
"""For each token: the forward's and the input's gradient; the weight's gradient."""


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if every printed claim held."""
    parser = argparse.ArgumentParser(prog="python -m memscale.benchmarks.larger", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"{', '.join(BUDGETS_GB)}; default: {' '.join(DEFAULT)}"
    )
    parser.add_argument("--steps", type=int, default=3, help="training steps (default 3)")
    parser.add_argument("--budget-gb", type=float, help="another budget, for every case")
    arguments = parser.parse_args(argv)
    held = True
    for name in arguments.cases or DEFAULT:
        if name not in CASES:
            parser.error(f"{name!r} is no case; there are {', '.join(BUDGETS_GB)}")
        budget_gb = arguments.budget_gb or BUDGETS_GB.get(name, 6.0)
        title = f"{name}: memscale with streamed parameters, {budget_gb} GB"
        rate = ADAPTERS_LEARNING_RATE if "lora" in name else LEARNING_RATE
        outcome = train(title, name, "memscale-streamed", arguments.steps, budget_gb=budget_gb, learning_rate=rate)
        held = trained_within(outcome, budget_gb) and held
        if outcome.finished:
            _print_yardstick(name, outcome.result)
    return 0 if held else 1


def _print_yardstick(name: str, result: dict[str, Any]) -> None:
    machine = json.loads(_core.hardware_probe())
    state = _STATE_BYTES * result["trained_weights"] if result["state_on_disk"] else 0
    disk_s = result["window_disk_ns"] / 1e9
    disk_s += state / machine["disk"]["read_bytes_per_s"] + state / machine["disk"]["write_bytes_per_s"]
    flops = _FLOPS_PER_WEIGHT * result["weights"] + _FLOPS_PER_TRAINED_WEIGHT * result["trained_weights"]
    tokens = CASES[name].batch * CASES[name].sequence
    compute_s = flops * tokens / machine["cpu"]["matmul_flops_per_s"] + result["recompute_ns"] / 1e9
    least_s = max(disk_s, compute_s)
    print(
        f"  the disk needs at least {disk_s:.0f} s a step, the processor {compute_s:.0f} s; a step took "
        f"{result['step_seconds']:.0f} s, {result['step_seconds'] / least_s:.2f} of the larger",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
