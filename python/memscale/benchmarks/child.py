"""One training run in a process of its own; prints one JSON object per line.

Started by `runner.run()`. The loop is the plain one that the README shows; nothing in
it knows of memscale but the one call to `wrap()`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from typing import Any

from .cases import CASES, batches


def _status_bytes(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _digest(model: Any) -> str:
    """A hash over every gradient's bytes, in the order of the parameters."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        if parameter.grad is not None:
            digest.update(memoryview(parameter.grad.detach().numpy()).cast("B"))
    return digest.hexdigest()[:16]


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _prepare(arguments: argparse.Namespace, model: Any) -> Any:
    """Applies the variant to the model; returns memscale's executor if there is one."""
    if arguments.variant == "hf":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if arguments.variant != "memscale":
        return None
    import memscale

    budget = arguments.budget_gb
    config = memscale.Config(
        memory_budget_gb=budget, force_optimize=arguments.force, **json.loads(arguments.config)
    )
    memscale.wrap(model, config)
    return model._memscale_executor


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=sorted(CASES), required=True)
    parser.add_argument("--variant", choices=["plain", "hf", "memscale"], required=True)
    parser.add_argument("--budget-gb", type=float)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--config", default="{}")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()

    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    case = CASES[arguments.case]
    model = case.make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = batches(case, arguments.steps)
    executor = _prepare(arguments, model)
    _reset_peak()
    _say(event="ready", resident_bytes=_status_bytes("VmRSS"))

    seconds = []
    for step, ids in enumerate(data):
        start = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        backward_end = time.perf_counter()
        digest = _digest(model) if step in (0, arguments.steps - 1) else None
        resumed = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - resumed + backward_end - start)
        _say(event="step", step=step, seconds=seconds[-1], loss=loss.item(), digest=digest,
             peak_bytes=_status_bytes("VmHWM"))
    result = {
        "event": "done",
        # The first step faults memory in and, when wrapped, makes the plan.
        "step_seconds": statistics.median(seconds[1:]) if len(seconds) > 1 else seconds[0],
        "peak_bytes": _status_bytes("VmHWM"),
    }
    if executor is not None:
        result["predicted_peak_bytes"] = executor.plan.predicted_peak_bytes
        result["predicted_step_seconds"] = executor.plan.predicted_step_seconds
        result["counters"] = executor.counters()
    _say(**result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
