"""The cost of memscale when everything fits, and the cost of a plan.

Each figure is taken in its own process by ``python -m memscale.benchmarks.overheads
FIGURE``, which prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from .cases import CASES, batches

PAIRS_OF_STEPS = 24
WARM_UP_STEPS = 4


def import_ms() -> float:
    """Median wall time that ``import memscale`` adds to an empty interpreter's."""

    def once(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    spans = [once("import memscale; memscale.Config") - once("pass") for _ in range(5)]
    return statistics.median(spans) * 1e3


def in_child(figure: str) -> dict[str, float]:
    """Takes one of `FIGURES` in a child process."""
    command = [sys.executable, "-m", "memscale.benchmarks.overheads", figure]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _planning() -> dict[str, float]:
    """Milliseconds to trace and plan each 12-layer case under 4 GB, for the first call and the second."""
    import torch

    import memscale
    from memscale import _core

    _core.hardware_probe()  # measured once per machine and cached
    spans: dict[str, float] = {}
    for name in ("gpt2", "bert", "llama"):
        case = CASES[name]
        torch.manual_seed(0)
        model = case.make().train()
        [batch] = batches(case, 1)
        for call in ("first", "again"):
            start = time.perf_counter()
            memscale.plan(model, batch, memscale.Config(memory_budget_gb=4.0, enable_logging=False))
            spans[f"{name} {call}"] = (time.perf_counter() - start) * 1e3
    return spans


def _nothing_to_do() -> dict[str, float]:
    """Median ratio of wrapped to unwrapped step time when everything fits."""
    import torch

    import memscale

    case = CASES["gpt2"]
    models: list[tuple[Any, torch.optim.Optimizer]] = []
    for is_wrapped in (False, True):
        torch.manual_seed(0)
        model: Any = case.make().train()
        model.config.use_cache = False
        if is_wrapped:
            memscale.wrap(model, memscale.Config(enable_logging=False))
        models.append((model, torch.optim.AdamW(model.parameters(), lr=1e-4)))
    [batch] = batches(case, 1)
    batch = {name: ids[:1, :128] for name, ids in batch.items()}

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
        start = time.perf_counter()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    for _ in range(WARM_UP_STEPS):
        for pair in models:
            step(*pair)
    ratios = []
    for index in range(PAIRS_OF_STEPS):
        # Each model goes first in half of the pairs.
        order = models if index % 2 == 0 else models[::-1]
        spans = [step(*pair) for pair in order]
        plain, wrapped = spans if index % 2 == 0 else spans[::-1]
        ratios.append(wrapped / plain)
    if not models[1][0]._memscale_executor.plan.skipped:
        raise RuntimeError("the plan was not empty")
    return {"ratio": statistics.median(ratios)}


FIGURES = {"planning": _planning, "nothing-to-do": _nothing_to_do}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=sorted(FIGURES))
    print(json.dumps(FIGURES[parser.parse_args().figure]()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
