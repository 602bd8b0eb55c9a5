"""Trains the divided Llamas of parallel_case.py with and without memscale. test_parallel.py runs it on every rank.

`python parallel_wrapped_case.py CONFIG FOLDER CASE...`; each rank writes its results to a file in FOLDER, one JSON
document a case. Not a test by itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from distributed_case import Kept
from parallel_case import CASES, Rank
from torch.distributed.tensor.parallel import loss_parallel

import memscale

STEPS = 3
LEFT_BEHIND_BYTES = 40_000_000


def digest_of(tensors: Any) -> str:
    """A hash of this rank's parts. Kept tensors would count in the next run's budget; a hash takes nothing."""
    parts = (tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.detach().numpy().tobytes())
    return digest.hexdigest()


def train(name: str, path: str, options: dict[str, Any] | None) -> tuple[list[str], dict[str, Any]]:
    """Digests of the gradients of each step and of the parameters after the last, and what memscale did."""
    torch.manual_seed(0)

    def wrap(stage: torch.nn.Module) -> None:
        if options is not None:
            memscale.wrap(stage, memscale.Config(enable_logging=False, **options))

    case = CASES[name]
    # Wrapped before layers are divided, else after: what lives at the wrap counts, other ranks' parts too.
    is_first = options is not None and "memory_budget_gb" in options and case.stages == case.data == 1
    rank = Rank(case, path, wrap) if is_first else Rank(case, path)
    model, did = rank.stage, {}
    if not is_first:
        wrap(model)
    seen, peaks = [], []
    for _ in range(STEPS):
        rank.step()
        seen.append(digest_of(p.grad for p in model.parameters()))
        if options is not None:
            peaks.append(model._memscale_executor.take_peak_bytes())
    if options is not None:
        executor = model._memscale_executor
        did = {
            "plan": executor.plan.to_json(),
            "peaks": peaks,
            **{key: executor.counters()[key] for key in ("recomputed_layers", "remade_tensors")},
        }
        memscale.detach(model)
    seen.append(digest_of(model.parameters()))
    return seen, did


def judge(name: str, path: str) -> dict[str, Any]:
    expected, _ = train(name, path, None)
    found, smallest = train(name, path, {"force_optimize": True})
    # A run leaves gloo's buffers and libraries behind in this process. They count in the next run.
    budget = json.loads(smallest["plan"])["predicted"]["peak_bytes"] + LEFT_BEHIND_BYTES
    found_within, within = train(name, path, {"memory_budget_gb": budget / 1e9})
    return {
        "equal": [run == expected for run in (found, found_within)],
        "smallest": smallest,
        "within": within,
        "budget": budget,
    }


def main() -> None:
    torch.set_num_threads(1)
    kept = Kept()
    logging.getLogger("memscale").addHandler(kept)
    dist.init_process_group("gloo")
    for name in sys.argv[3:]:
        with loss_parallel() if CASES[name].tensor > 1 else nullcontext():
            judged = judge(name, sys.argv[1])
        with open(f"{sys.argv[2]}/{dist.get_rank()}", "a") as file:
            file.write(json.dumps({**judged, "case": name, "warnings": kept.texts}) + "\n")
        kept.texts = []
    time.sleep(1)  # as in distributed_case.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
