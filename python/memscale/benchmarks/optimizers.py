"""AdamW of memscale beside torch's and bitsandbytes', in the same process, step by step in turn.

Run with ``python -m memscale.benchmarks.optimizers [million parameters [rounds]]``. Figures are
the best and the median of the rounds, and ratios against torch's fused AdamW.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

SHAPE_ROWS = 2048


def _parameters(elements: int, dtype: Any) -> list[Any]:
    """Matrices of a transformer's size and a few vectors."""
    import torch

    made = []
    left = elements
    while left > 0:
        rows = max(1, min(SHAPE_ROWS, left // 2048))
        made += [torch.randn(rows, 2048, dtype=dtype), torch.randn(2048, dtype=dtype)]
        left -= (rows + 1) * 2048
    for p in made:
        p.grad = torch.randn(p.shape).to(dtype) * 1e-3
    return [p.requires_grad_() for p in made]


def _contenders() -> dict[str, Callable[[list[Any]], Any]]:
    import torch

    from .. import optim

    contenders: dict[str, Callable[[list[Any]], Any]] = {
        "torch fused": lambda ps: torch.optim.AdamW(ps, fused=True),
        "torch default": lambda ps: torch.optim.AdamW(ps),
        "memscale": lambda ps: optim.AdamW(ps),
        "memscale 8-bit": lambda ps: optim.AdamW8bit(ps),
        "memscale on disk": lambda ps: optim.AdamW(ps, state="disk"),
    }
    try:
        import bitsandbytes
    except ImportError:
        return contenders
    contenders["bitsandbytes 8-bit"] = lambda ps: bitsandbytes.optim.AdamW8bit(ps)
    return contenders


def measure(elements: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round's step, by contender; those that can't run are left out, with a line."""
    import torch

    running = {}
    for name, make in _contenders().items():
        try:
            optimizer = make(_parameters(elements, torch.float32))
            optimizer.step()
            running[name] = optimizer
        except Exception as error:  # another package's: whatever it raises
            print(f"{name}: does not run here ({type(error).__name__}: {error})")
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, optimizer in running.items():
            start = time.perf_counter()
            optimizer.step()
            times[name].append(time.perf_counter() - start)
    return times


def main(arguments: list[str]) -> int:
    """Prints the table."""
    import torch

    elements = int(float(arguments[0]) * 1e6) if arguments else 124_000_000
    rounds = int(arguments[1]) if len(arguments) > 1 else 7
    times = measure(elements, rounds)
    base = min(times["torch fused"])
    print(f"{elements / 1e6:.0f}M fp32 parameters, {torch.get_num_threads()} threads, {rounds} rounds")
    for name, seconds in times.items():
        best = min(seconds)
        print(
            f"{name:20} best {best * 1e3:8.1f} ms  median {statistics.median(seconds) * 1e3:8.1f} ms  "
            f"{best / base:5.2f} of torch fused"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
