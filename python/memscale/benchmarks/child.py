"""Makes one training run in its own process, and prints one JSON object per line.

`runner.run()` starts it. The loop is the plain one of the README; only the call to `wrap()` involves
memscale.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
import sys
import time
from typing import Any

if __package__:
    from .cases import CASES, batches
else:  # run as a file by an interpreter with another memscale
    from cases import CASES, batches  # type: ignore[no-redef]


VARIANTS = ("plain", "hf", "hf_offload", "memscale", "memscale-all", "memscale-streamed", "uniform", "closed")
"""`memscale-all` has memscale's optimizer, whose state and gradients the plan may arrange too, and
`memscale-streamed` a model whose parameters stream as well. `uniform`
offloads every layer's saved tensors to disk, without the planner's choice."""


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
    """A hash over the bytes of all present gradients, in the order of the parameters."""
    import torch

    digest = hashlib.sha256()
    for parameter in model.parameters():
        if parameter.grad is not None:
            raw = parameter.grad.detach().cpu().contiguous().view(-1).view(torch.uint8)  # numpy has no bf16
            digest.update(memoryview(raw.numpy()))
    return digest.hexdigest()[:16]


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _prepare(arguments: argparse.Namespace, model: Any) -> tuple[Any, Any]:
    """Applies the variant to the model. Returns its optimizer, and memscale's executor if there is one."""
    import torch

    if arguments.variant in ("hf", "hf_offload"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if arguments.variant in ("memscale-all", "memscale-streamed"):
        return _prepare_all(arguments, model)
    optimizer = torch.optim.AdamW(_trained(model), lr=arguments.learning_rate)
    if arguments.variant not in ("memscale", "uniform", "closed"):
        return optimizer, None
    import memscale

    if arguments.variant == "closed":
        memscale.wrap(model, memscale.Config(**json.loads(arguments.config)))
        return optimizer, None
    if arguments.variant == "uniform":
        _plan_uniformly()
    memscale.wrap(model, _config(arguments))
    return optimizer, model._memscale_executor


def _trained(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _prepare_all(arguments: argparse.Namespace, model: Any) -> tuple[Any, Any]:
    import memscale

    optimizer: Any = memscale.optim.AdamW(_trained(model), lr=arguments.learning_rate)
    config = _config(arguments, mode="aggressive")
    model, optimizer = memscale.apply_all_optimizations(model, optimizer, config)
    return optimizer, model._memscale_executor


def _plan_uniformly() -> None:
    """Makes every later plan of this process offload all saved tensors of all layers to disk."""
    from memscale import _core
    from memscale.session.session import Session

    def make_plan(session: Session, graph: str) -> str:
        return _core.plan_uniform(graph, session.hardware_json, session.config_json, "offload_disk")

    Session._make_plan = make_plan  # type: ignore[method-assign, assignment]


def _config(arguments: argparse.Namespace, **fields: Any) -> Any:
    import memscale

    fields |= json.loads(arguments.config)
    return memscale.Config(memory_budget_gb=arguments.budget_gb, force_optimize=arguments.force, **fields)


class _Meter:
    """Measures time and the training device's peak, from construction on. It does not use memscale, because an
    interpreter with another memscale may run this file."""

    def __init__(self, device: str) -> None:
        self._accelerator: Any = None
        if device == "cpu":
            _reset_peak()
        else:
            import torch

            self._accelerator = getattr(torch, device)
            self._accelerator.reset_peak_memory_stats()

    def now(self) -> float:
        """Seconds on a clock, read after the device has finished its work."""
        if self._accelerator is not None:
            self._accelerator.synchronize()
        return time.perf_counter()

    def peak_bytes(self) -> int:
        """Allocated bytes of a GPU, resident bytes of the process on the CPU."""
        if self._accelerator is not None:
            return int(self._accelerator.max_memory_allocated())
        return _status_bytes("VmHWM")


def _around_making(variant: str) -> Any:
    """The context in which the model is made."""
    if variant != "memscale-streamed":
        return contextlib.nullcontext()
    import memscale

    return memscale.stream()


def _around_forward(variant: str) -> Any:
    """The context of the forward. In the offload variant it moves inputs of checkpoints to pinned host memory."""
    if variant != "hf_offload":
        return contextlib.nullcontext()
    import torch

    return torch.autograd.graph.save_on_cpu(pin_memory=True)


def _record_of_streaming(model: Any, executor: Any) -> dict[str, Any]:
    """The bytes, disk time and recomputation that the plan in force adds to the model's forward and backward."""
    from memscale import _core

    plan, trained = executor.plan, _trained(model)
    return {
        "streamed": _core.streamed_stats(),
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "trained_weights": sum(parameter.numel() for parameter in trained),
        "state_on_disk": plan.step_options["state_on_disk"]["chosen"],
        "window_disk_ns": executor._planner.window_disk_ns,
        "recompute_ns": json.loads(plan.to_json())["predicted"]["recompute_ns"],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=sorted(CASES), required=True)
    parser.add_argument("--variant", choices=VARIANTS, required=True)
    parser.add_argument("--budget-gb", type=float)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--config", default="{}")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--in-turn", action="store_true", help="begin each step when a line comes in")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()

    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.exp(torch.zeros(8))  # see memscale.base.vector_math; the interpreter may have another memscale
    torch.manual_seed(0)
    case = CASES[arguments.case]
    with _around_making(arguments.variant):
        model = case.make().train().to(arguments.device)
    data = [
        {name: tensor.to(arguments.device) for name, tensor in inputs.items()}
        for inputs in batches(case, arguments.steps)
    ]
    optimizer, executor = _prepare(arguments, model)
    meter = _Meter(arguments.device)
    _say(event="ready", resident_bytes=_status_bytes("VmRSS"))

    seconds = []
    predicted = 0  # the largest prediction, because the measured peak covers all steps
    for step, inputs in enumerate(data):
        if arguments.in_turn:
            sys.stdin.readline()
        start = meter.now()
        with _around_forward(arguments.variant):
            loss = model(**inputs).loss
        if executor is not None:
            predicted = max(predicted, executor.plan.predicted_peak_bytes)
        loss.backward()
        backward_end = meter.now()
        digest = _digest(model) if step in (0, arguments.steps - 1) else None
        resumed = meter.now()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(meter.now() - resumed + backward_end - start)
        _say(
            event="step", step=step, seconds=seconds[-1], loss=loss.item(), digest=digest, peak_bytes=meter.peak_bytes()
        )
    result = {
        "event": "done",
        # The first step faults memory in and, when wrapped, makes the plan.
        "step_seconds": statistics.median(seconds[1:]) if len(seconds) > 1 else seconds[0],
        "peak_bytes": meter.peak_bytes(),
    }
    if executor is not None:
        result["predicted_peak_bytes"] = predicted
        result["predicted_step_seconds"] = executor.plan.predicted_step_seconds
        result["counters"] = executor.counters()
    if arguments.variant == "memscale-streamed":
        result |= _record_of_streaming(model, executor)
    _say(**result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
