"""Trains GPT-2 XL in 24 GiB, which is too little for an unmodified run.

1.56 billion parameters, 1 x 512 tokens, fp32, AdamW: parameters, gradients and two
moments alone take 24.9 GB. Run with ``python -m memscale.benchmarks.xl``, or ``make
bench-xl``; it takes some minutes and 13 GB of disk. If the machine allows it (root and a memory
cgroup), the unmodified script then runs too, until the kernel kills it.
"""

from __future__ import annotations

import argparse
import os
import sys

from .progress import train, trained_within
from .runner import memory_group

CASE = "gpt2-xl"
BUDGET_GB = 10.0
LEARNING_RATE = 1e-5
"""AdamW's first step changes every weight by this much. A model this wide needs a small value."""
RESERVE_BYTES = 2 << 30
"""Memory left to the rest of the machine while the unmodified run reaches its limit."""


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark. The exit status is 0 if every printed claim held."""
    parser = argparse.ArgumentParser(prog="python -m memscale.benchmarks.xl", description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="training steps (default 4)")
    parser.add_argument("--budget-gb", type=float, default=BUDGET_GB, help=f"budget (default {BUDGET_GB})")
    parser.add_argument("--no-limit", action="store_true", help="leave out the unmodified run")
    arguments = parser.parse_args(argv)
    budget_gb = arguments.budget_gb
    wrapped = train(
        f"memscale, {budget_gb} GB",
        CASE,
        "memscale-all",
        arguments.steps,
        budget_gb=budget_gb,
        learning_rate=LEARNING_RATE,
    )
    held = trained_within(wrapped, budget_gb)
    if not arguments.no_limit:
        held = _unmodified_is_killed() and held
    return 0 if held else 1


def _unmodified_is_killed() -> bool:
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with memory_group(machine_bytes - RESERVE_BYTES) as group:
        if group is None:
            print("\n(no memory cgroup can be made here: the unmodified run is left out)")
            return True
        plain = train(f"unmodified, all but {RESERVE_BYTES >> 30} GiB of the machine", CASE, "plain", 2, group=group)
    print(f"  -> {'killed by the kernel' if plain.was_killed else f'status {plain.exit_code}'}", flush=True)
    return plain.was_killed


if __name__ == "__main__":
    sys.exit(main())
